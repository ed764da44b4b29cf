"""Spaces that look at values while they build."""

import logging
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from nasflow.errors import InvalidArchitecture, SpaceError
from nasflow.space.pick import Pick
from nasflow.space.space import Space

LOOKS: dict[str, Callable[[torch.Tensor], Any]] = {
    "item": lambda widths: widths[0].item(),
    "tolist": lambda widths: widths.tolist()[0],
    "numpy": lambda widths: widths.numpy()[0],
    "asarray": lambda widths: np.asarray(widths)[0],
    "bool": lambda widths: 4 if widths[0] > 3 else 5,
    "float": lambda widths: float(widths[0]),
    "index": lambda widths: range(9)[widths[0]],
    "format": lambda widths: f"{widths[0]:.0f}",
    "unique": lambda widths: torch.unique(widths)[0],
    "nonzero": lambda widths: len(torch.nonzero(widths)) + 2,
    "mixed": lambda widths: (widths + torch.from_numpy(np.zeros(2)))[0],
}


def looking(look: Callable[[torch.Tensor], Any], seen: list[str]) -> Callable[[Pick], nn.Module]:
    """A program whose widths are a tensor."""

    def program(pick: Pick) -> nn.Module:
        seen.append(torch.get_default_device().type)
        factor = pick("factor", [1, 2])
        width = int(look(torch.linspace(4, 8, 2).int()))
        return nn.Linear(factor * width, pick("outputs", [2, 3]))

    return program


@pytest.mark.parametrize("look", LOOKS.values(), ids=LOOKS)
def test_it_is_built_for_real_from_then_on(look: Callable[[torch.Tensor], Any], caplog: Any) -> None:
    seen: list[str] = []
    space = Space(looking(look, seen), "mine")
    state = torch.get_rng_state()
    architecture = space.sample(random.Random(0))
    assert seen == ["meta", "cpu"] and space.is_real
    model = space.validate(architecture)
    assert model.weight.shape == (architecture["outputs"], 4 * architecture["factor"]) and not model.weight.is_meta
    assert [dict(each) for each in space.enumerate()] == [{"factor": f, "outputs": o} for f in (1, 2) for o in (2, 3)]
    assert space.count() == (4, True)
    assert set(seen[1:]) == {"cpu"} and torch.equal(torch.get_rng_state(), state)
    (record,) = caplog.records
    told = record.getMessage()
    assert record.levelno == logging.WARNING and "\n" not in told
    assert told.startswith("space 'mine' looks at values while it builds, so it is built for real from now on")
    assert "test_real.py, line" in told and " s and the memory of its weights" in told


@pytest.mark.parametrize("kind", [ValueError, InvalidArchitecture])
@pytest.mark.parametrize("chain", ["from it", "in its place", "hidden"])
def test_an_error_that_the_program_raises_for_it_counts_too(kind: type[Exception], chain: str) -> None:
    def program(pick: Pick) -> int:
        try:
            return pick("x", [1, 2]) * int(torch.ones(()).item())
        except RuntimeError as error:
            if chain == "in its place":
                raise kind("no good")  # noqa: B904
            raise kind("no good") from (error if chain == "from it" else None)

    space = Space(program)
    assert [space.validate(architecture) for architecture in space.enumerate()] == [1, 2]
    assert space.is_real


def test_an_error_of_the_users_own_is_told_as_it_is(caplog: Any) -> None:
    def program(pick: Pick) -> nn.Module:
        if pick("x", [7, 8]) == 7:
            raise ValueError("the meta data of x are missing")
        return nn.Linear(2, 2)

    space = Space(program, "mine")
    with pytest.raises(SpaceError, match=r"raised ValueError: the meta data .*test_real.py, line \d+.*\"x\":7"):
        space.validate({"x": 7})
    assert not space.is_real and not caplog.records
    assert space.validate({"x": 8}).weight.is_meta


def test_an_error_behind_the_look_is_told() -> None:
    def program(pick: Pick) -> nn.Module:
        return nn.Linear(pick("x", [7]), 0 * int(torch.ones(()).item()) - 1)

    with pytest.raises(SpaceError, match=r"raised RuntimeError: .*negative dimension -1"):
        Space(program).sample(random.Random(0))


def test_what_makes_no_sense_stays_so() -> None:
    def program(pick: Pick) -> int:
        x = pick("x", [1, 2]) * int(torch.ones(()).item())
        if x == 1:
            raise InvalidArchitecture("one")
        return x

    space = Space(program)
    assert [dict(each) for each in space.enumerate()] == [{"x": 2}] and space.count() == (1, True)


def test_what_cannot_be_completed_without_values_is_built_for_real_to_be_looked_at() -> None:
    completed: list[str] = []

    def complete(model: nn.Linear) -> bool:
        completed.append(model.weight.device.type)
        return not model.weight.is_meta

    space = Space(lambda pick: nn.Linear(pick("x", [1, 2]), 3), complete=complete)
    architecture = space.sample(random.Random(0))
    assert completed == [] and not space.is_real
    assert not space.validate(architecture).weight.is_meta
    assert completed == ["meta", "cpu"] and not space.is_real
    space.on_explored = lambda architecture, model: completed.append(f"explored on {model.weight.device}")
    space.sample(random.Random(0))
    assert completed[2:] == ["meta", "cpu", "explored on cpu"]
