"""Models and modules whose state is more than their tensors go on from checkpoints as if they had never stopped."""

from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from nasflow.config.search import Target
from nasflow.evaluator.candidate import candidate_space
from nasflow.training.member.trained import with_weights
from tests.training.fused_jobs import same
from tests.training.interrupted import interrupted
from tests.training.jobs import HERE, evaluator, evictions, make_job, outcome, train, weights

FILE = "resumed_modules.py"
VERSIONED = f"{FILE}:versioned"


def goes_on(space: str, config: Any, root: Path) -> None:
    job = make_job(space, config, [{}])
    whole = train(job, root / "whole")
    assert not evictions(whole)
    interrupted(job, root / "stopped", 0, 2)
    again = train(job, root / "stopped")
    assert not evictions(again)
    same(outcome(whole, root / "whole", 0), outcome(again, root / "stopped", 0), 0.0)


def own(name: str, params: Any = MappingProxyType({})) -> Any:
    return evaluator(kind="lightning", module={"target": name, "params": dict(params)}, epochs=3)


def test_layers_have_the_versions_that_they_were_saved_with(tmp_path: Path) -> None:
    goes_on(VERSIONED, evaluator(epochs=3), tmp_path)
    saved = weights(tmp_path / "whole", 0)
    built = candidate_space(Target(target=VERSIONED), evaluator(), HERE).build({}).model
    of_model = {name.removeprefix("model."): tensor for name, tensor in saved.items()}
    assert with_weights(built, of_model)[1].activation_post_process.eps.item() == pytest.approx(0.05)


@pytest.mark.parametrize(
    ("name", "params"), [(f"{FILE}:Grows", {}), ("hooked_modules.py:AddsLayers", {"how": "1"})], ids=["bank", "layers"]
)
def test_modules_that_grow(name: str, params: dict[str, Any], tmp_path: Path) -> None:
    """By a hook that only loads, and by layers that an optimizer is given later."""
    goes_on("spaces.py:deep", own(name, params), tmp_path)
