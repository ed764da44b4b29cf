"""The units of real models, by costs that are made up."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from nasflow.merge.kernels.base import Kernel
from nasflow.merge.kernels.loop import Loop
from nasflow.merge.planning.cost_model import CostModel
from nasflow.merge.planning.planner import Planner
from nasflow.merge.trace.graph import Graph, trace
from nasflow.merge.trace.node import Node
from nasflow.merge.trace.shape_inference import Spec
from nasflow.merge.values.layout import Layout

BATCHED = {4: 0.3, 8: 1.0, 16: 0.5}


class Opaque(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.sum() > 0 else x - 1


class Costs(CostModel):
    """A linear layer costs 1 a row, and in a batch of several rows what `BATCHED` says for its outputs."""

    def kernel(self, kernel: type[Kernel], node: Node, rows: int, shared: bool) -> float:
        if not isinstance(node.module, nn.Linear):
            return 0.0
        return rows * (1.0 if kernel is Loop or rows == 1 else BATCHED[node.module.out_features])

    def gather(self, layout: Layout, numbers: int) -> float:
        return 0.0

    def step(self) -> float:
        return 0.05


KINDS: dict[str, Callable[[], nn.Module]] = {
    "gains": lambda: nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 4), nn.Flatten()),
    "does not": lambda: nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.Flatten()),
    "opaque": lambda: nn.Sequential(Opaque(), nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 16), nn.Flatten()),
    "hooked": lambda: hooked(nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 4), nn.Flatten())),
}


def hooked(model: nn.Sequential) -> nn.Module:
    model[0].register_forward_hook(lambda module, args, output: None)
    return model


def graphs(kinds: list[str]) -> list[Graph]:
    return [trace(KINDS[kind](), Spec.batch(torch.zeros(5, 6))) for kind in kinds]


@pytest.fixture
def planner(tmp_path: Path) -> Planner:
    return Planner(costs=Costs(torch.device("cpu"), tmp_path))


def units(planner: Planner, kinds: list[str], limit: int = 100) -> list[list[str]]:
    found = planner.partition([graphs(kinds)], limit, [True])
    assert sorted(index for unit in found for index in unit) == list(range(len(kinds)))
    return sorted(sorted(kinds[index] for index in unit) for unit in found)


def test_kinds_that_gain_are_units_beside_those_that_do_not(planner: Planner) -> None:
    kinds = ["gains", "does not", "opaque"] * 4
    assert units(planner, kinds) == [*[["does not"]] * 4, ["gains"] * 4, ["opaque"] * 4]


def test_one_all_equal_all_different_and_none(planner: Planner) -> None:
    assert units(planner, ["gains"]) == [["gains"]]
    assert units(planner, ["gains"] * 7) == [["gains"] * 7]
    assert units(planner, ["does not", "opaque", "gains"]) == [["does not"], ["gains"], ["opaque"]]
    assert planner.partition([[]], 100, [True]) == []


def test_members_with_hooks_are_grouped_by_the_rest_of_them(planner: Planner) -> None:
    found = units(planner, ["gains", "hooked"] * 3)
    assert ["gains"] * 3 in found or ["gains"] * 3 + ["hooked"] * 3 in found


def test_units_do_not_depend_on_what_the_process_met_before(planner: Planner) -> None:
    """Signatures are numbered as they are met."""
    kinds = [random.Random(1).choice(list(KINDS)) for _ in range(20)]
    found = planner.partition([graphs(kinds)], 100, [True])
    models = [KINDS[kind]() for kind in kinds]
    again = list(reversed([trace(model, Spec.batch(torch.zeros(5, 6))) for model in reversed(models)]))
    assert planner.partition([again], 100, [True]) == found


def test_units_that_are_chosen_need_no_costs_that_were_not_saved(tmp_path: Path) -> None:
    """Else a job that resumes would measure them again, and perhaps choose other kernels."""

    class Costs(CostModel):
        def step(self) -> float:
            return 1.0  # so that unlike members are one unit

    def build(width: int) -> nn.Module:
        return nn.Sequential(nn.Linear(6, width), nn.Linear(width, width), nn.Linear(width, 16), nn.Linear(16, 4))

    found = [trace(build(width), Spec.batch(torch.zeros(5, 6))) for width in (4, 8) for _ in range(3)]
    planner = Planner(costs=Costs(torch.device("cpu"), tmp_path))
    assert planner.partition([found], 100, [True]) == [[0, 1, 2, 3, 4, 5]]
    again = Planner(costs=Costs(torch.device("cpu"), tmp_path))
    assert again.costs is not None
    assert again.cost(again.plan(found)) == planner.cost(planner.plan(found))
    assert again.costs.measured == 0
