import random
from collections.abc import Callable

import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn

from nasflow.errors import SpaceError
from nasflow.space import ready
from nasflow.space.architecture import Architecture
from nasflow.space.space import Space

SPACES = [ready.mlp, ready.cell_cnn]
SHAPES = {ready.mlp: (5, 64), ready.cell_cnn: (5, 1, 8, 8)}


@pytest.mark.parametrize("build", SPACES)
@pytest.mark.parametrize("seed", range(8))
def test_every_candidate_works_on_digits(build: Callable[..., nn.Module], seed: int) -> None:
    space = Space.of(build)
    model = space.build(space.sample(random.Random(seed)))
    out = model(torch.rand(SHAPES[build]))
    assert out.shape == (5, 10) and out.isfinite().all()
    out.sum().backward()
    assert all(p.grad is not None for p in model.parameters())


@pytest.mark.parametrize("build", SPACES)
def test_rebuilding_from_json_and_seed_gives_the_same_model(build: Callable[..., nn.Module]) -> None:
    space = Space.of(build)
    architecture = space.sample(random.Random(1))
    models = []
    for text in (architecture.to_json(), Architecture.from_json(architecture.to_json()).to_json()):
        torch.manual_seed(7)
        models.append(space.build(Architecture.from_json(text)))
    first, second = models
    assert str(first) == str(second)
    assert all(
        torch.equal(a, b) for a, b in zip(first.state_dict().values(), second.state_dict().values(), strict=True)
    )


@pytest.mark.parametrize("build", SPACES)
def test_models_can_be_traced(build: Callable[..., nn.Module]) -> None:
    space = Space.of(build)
    model = space.build(space.sample(random.Random(2))).eval()
    x = torch.rand(SHAPES[build])
    assert torch.equal(torch.fx.symbolic_trace(model)(x), model(x))


def test_mlp_takes_images_and_other_sizes() -> None:
    space = Space.of(ready.mlp, {"in_features": 12, "classes": 1, "widths": [4, 5], "max_depth": 2, "dropout": [0.5]})
    assert space.count() == (3 * (2 + 2**2), True)
    for architecture in space.enumerate():
        assert space.build(architecture)(torch.rand(3, 1, 3, 4)).shape == (3, 1)


def test_mlp_has_depth_widths_activation_and_dropout() -> None:
    space = Space.of(ready.mlp)
    model = space.build({"depth": 2, "width0": 16, "activation": "gelu", "dropout": 0.1, "width1": 64})
    assert [type(layer).__name__ for layer in model] == ["Flatten"] + ["Linear", "GELU", "Dropout"] * 2 + ["Linear"]


def test_cell_cnn_takes_other_sizes() -> None:
    for size, cells in ((8, 3), (28, 3), (7, 2), (2, 1)):
        space = Space.of(ready.cell_cnn, {"in_channels": 3, "classes": 4, "image_size": size, "max_cells": cells})
        for seed in range(4):
            architecture = space.sample(random.Random(seed))
            assert space.build(architecture)(torch.rand(2, 3, size, size)).shape == (2, 4)
    with pytest.raises(SpaceError, match="cell_cnn: 3 cells need an image_size of at least 8, not 7"):
        Space.of(ready.cell_cnn, {"image_size": 7}).sample(random.Random(0))


def test_cell_cnn_counts_its_cells() -> None:
    space = Space.of(ready.cell_cnn, {"max_cells": 2, "widths": [8], "positions": 1})
    assert space.count() == (6 + 6**2, True)


def test_a_good_cell_cnn_learns_digits() -> None:
    images, digits = load_digits(return_X_y=True)
    split = train_test_split(images, digits, test_size=0.2, random_state=0, stratify=digits)
    x, x_val = (torch.tensor(part / 16, dtype=torch.float32).view(-1, 1, 8, 8) for part in split[:2])
    y, y_val = (torch.tensor(part) for part in split[2:])
    torch.manual_seed(0)
    cell = {"cell0/op0": "depthwise3x3", "cell0/op1": "conv3x3", "cell1/op0": "conv3x3", "cell1/op1": "conv3x3"}
    model = Space.of(ready.cell_cnn).build({"width": 16, "cells": 2, **cell})
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    for _ in range(6):
        for rows in torch.randperm(len(x)).split(64):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
            optimizer.step()
    model.eval()
    with torch.no_grad():
        accuracy = (model(x_val).argmax(1) == y_val).float().mean().item()
    assert accuracy >= 0.97
