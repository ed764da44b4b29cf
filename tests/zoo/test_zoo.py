"""Models from other libraries train merged as each does alone. All of them: `python -m tests.zoo`."""

from pathlib import Path

import pytest

pytest.importorskip("transformers", reason="needs the zoo's models: install nasflow[zoo]")

from tests.zoo.command import MODES
from tests.zoo.runs import TOLERANCE, Group
from tests.zoo.spaces import ARCHITECTURES

pytestmark = pytest.mark.long

# The variety first: residual, attention, mixer; tied parameters, and draws of their own.
SHORT = [
    "ResNet CIFAR",
    "CBAM-ResNet",
    "Shake-Shake-ResNet",
    "BERT",
    "BERT from its parts",
    "GPT-2 from its parts",
    "T5 from its parts",
    "ViT from its parts",
    "PatchTSMixer",
]


def test_it_is_a_zoo() -> None:
    assert len(ARCHITECTURES) >= 60


@pytest.mark.parametrize("name", SHORT)
def test_merged_is_alone(name: str, tmp_path: Path) -> None:
    group = Group(name, tmp_path)
    for fuse in MODES:
        result = group.compare(fuse)
        assert result.difference <= TOLERANCE, f"{fuse}: {result.where}"
        assert not result.rounding, "whole trainings are compared"


@pytest.mark.parametrize("name", ["SqueezeNext"])
def test_where_rounding_is_amplified_first_gradients_are_compared(name: str, tmp_path: Path) -> None:
    result = Group(name, tmp_path).compare("always")
    assert result.rounding > TOLERANCE / 100
    assert result.difference <= TOLERANCE, result.where
