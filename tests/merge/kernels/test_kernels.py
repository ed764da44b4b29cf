"""Each kernel does for every member what plain PyTorch does for it alone."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn

from nasflow.merge.run import merged_model
from tests.merge.layers import ACTIVATIONS, IMAGES, ROWS, SEQUENCES, TOKENS, conv, has_batch_norm, hidden, pooled
from tests.merge.merging import Make, check, images, rows, sequences, tokens
from tests.merge.models import Stopped, StoppedAfter, Unused

LAYERS: dict[str, tuple[str, Make, Callable[[int], torch.Tensor]]] = {
    name: (kernel, make, inputs)
    for layers, inputs in ((ROWS, rows), (IMAGES, images), (SEQUENCES, sequences), (TOKENS, tokens))
    for name, (kernel, make) in layers.items()
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations(name: str) -> None:
    check([lambda: hidden(ACTIVATIONS[name]())] * 2, rows(), rows(3), steps=1)


def test_many_activations_in_one_kernel() -> None:
    """Beside each other in one order, and mixed up; on rows and on images."""
    kinds = ["ReLU", "GELU", "Tanh", "Sigmoid", "SiLU", "ReLU-inplace", "Mish", "ReLU", "GELU-tanh"]
    for of in (kinds, sorted(kinds[:5] * 2)):
        assert "Pointwise" in check([lambda k=kind: hidden(ACTIVATIONS[k]()) for kind in of], rows()).kernels
    assert "Pointwise" in check([lambda k=kind: conv(ACTIVATIONS[k]()) for kind in kinds], images()).kernels


@pytest.fixture(params=["as planned", "all on tape"])
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Autograd where the merged model uses it, or never."""
    if request.param == "all on tape":
        monkeypatch.setattr(merged_model, "_LEAST", 1)
        monkeypatch.setattr(merged_model, "_is_native", lambda kernel: True)


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.usefixtures("engine")
def test_layers(name: str) -> None:
    """Three members alike: outputs, gradients, weights, buffers and random streams; the last batch is smaller."""
    kernel, make, inputs = LAYERS[name]
    group = check([make] * 3, inputs(6), inputs(4))
    assert kernel in group.kernels


@pytest.mark.parametrize("name", [name for name, (_, make, _) in LAYERS.items() if not has_batch_norm(make)])
def test_a_last_batch_of_one(name: str) -> None:
    _, make, inputs = LAYERS[name]
    check([make] * 2, inputs(5), inputs(1), steps=1)


def test_images_of_one_channel_and_one_pixel() -> None:
    """Whose strides can be read in more than one way."""
    narrow = (nn.Conv2d(1, 4, 3), nn.Conv2d(4, 1, 1), nn.BatchNorm2d(1), nn.Dropout(0.3), nn.Conv2d(1, 4, 3))
    make = lambda: copy.deepcopy(pooled(*narrow))  # noqa: E731
    check([make] * 3, images(6, channels=1), images(1, channels=1))
    check([make] * 3, images(6, channels=1, size=5), images(1, channels=1, size=5))


@pytest.mark.usefixtures("engine")
def test_members_that_differ_in_what_gets_gradients() -> None:
    check([lambda: Stopped(True), lambda: Stopped(False), lambda: Stopped(True)], rows())
    check([lambda: StoppedAfter(True), lambda: StoppedAfter(False), lambda: StoppedAfter(True)], rows())
    check([lambda: Unused(True), lambda: Unused(False)], rows())
