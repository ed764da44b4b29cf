"""Which code only computes from its arguments."""

import math
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from nasflow.training.unit.lockstep.joint.purity import is_pure

RATE, TABLE, LEVELS = 0.5, {"a": 1}, (1, 2, 3)


def halve(x: torch.Tensor) -> torch.Tensor:
    return x * RATE / LEVELS[1]


def uses_another(x: torch.Tensor) -> torch.Tensor:
    return halve(F.relu(x)).sum(dim=tuple(range(x.ndim))) + math.pi


def calls_itself(x: torch.Tensor, n: int = 3) -> torch.Tensor:
    return x if n == 0 else calls_itself(halve(x), n - 1)


def has_parts(x: torch.Tensor) -> torch.Tensor:
    return sum(part.mean() for part in [row for row in x if len(row)])


def reads_a_table(x: torch.Tensor) -> torch.Tensor:
    return x * TABLE["a"]


def keeps(x: torch.Tensor, seen: list[Any] = []) -> torch.Tensor:  # noqa: B006 - this is what it tests
    seen.append(x)
    return x


def sets_a_global(x: torch.Tensor) -> torch.Tensor:
    global RATE  # noqa: PLW0603 - this is what it tests
    RATE = 2
    return x


def sets_an_attribute(x: Any) -> Any:
    x.seen = True
    return x


def prints(x: torch.Tensor) -> torch.Tensor:
    print(x)
    return x


def prints_inside(x: torch.Tensor) -> torch.Tensor:
    return prints(x)


def draws(x: torch.Tensor) -> torch.Tensor:
    return x * random.random()


def draws_by_numpy(x: torch.Tensor) -> torch.Tensor:
    return x * np.random.rand()


def imports(x: torch.Tensor) -> torch.Tensor:
    import os

    return x * os.getpid()


def saves(x: torch.Tensor) -> torch.Tensor:
    torch.save(x, "x.pt")
    return x


def seeds(x: torch.Tensor) -> torch.Tensor:
    torch.manual_seed(0)
    return x


def unknown(x: torch.Tensor) -> torch.Tensor:
    return not_there(x)  # type: ignore[name-defined]  # noqa: F821


def with_closure(value: Any) -> Callable[..., Any]:
    def inner(x: torch.Tensor) -> torch.Tensor:
        return x * len(value)

    return inner


@pytest.mark.parametrize("function", [halve, uses_another, calls_itself, has_parts, with_closure((1, 2))])
def test_pure(function: Callable[..., Any]) -> None:
    assert is_pure(function)


@pytest.mark.parametrize(
    "function",
    [
        *(reads_a_table, keeps, sets_a_global, sets_an_attribute, prints, prints_inside, draws, draws_by_numpy),
        *(imports, saves, seeds, unknown, with_closure([1, 2]), print, None, F.relu.__class__, torch.nn.ReLU()),
    ],
)
def test_not_pure(function: Any) -> None:
    assert not is_pure(function)
