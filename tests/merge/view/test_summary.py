"""A plan in plain values says what the merged model does."""

from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from torch import nn

from nasflow.merge.planning.cost_model import CostModel
from nasflow.merge.planning.logical_plan import Batch
from nasflow.merge.planning.planner import Planner
from nasflow.merge.run.merged_model import MergedModel
from nasflow.merge.trace.graph import trace
from nasflow.merge.trace.shape_inference import Spec
from nasflow.merge.values.frozen_pool import FrozenPool
from nasflow.merge.view.summary import Outline, Step, outline, prices


class Opaque(nn.Module):
    """What no trace can follow."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if float(x.detach().sum()) > 0 else x


def merged(*models: nn.Module, planner: Planner | None = None) -> MergedModel:
    pool = FrozenPool()
    for model in models:
        pool.share(model)
    plan = (planner or Planner()).plan([trace(model, Spec.batch(torch.zeros(4, 6))) for model in models])
    generators = [torch.Generator() for _ in models]
    return MergedModel(plan, [nullcontext()] * len(models), generators, lambda _, run: run())


def outlined(*models: nn.Module) -> Outline:
    return outline(merged(*models))


def frozen(features: int) -> nn.Linear:
    layer = nn.Linear(6, features)
    for parameter in layer.parameters():
        parameter.requires_grad_(False).fill_(0.5)
    return layer


def names(steps: tuple[Step, ...]) -> list[tuple[str, str, tuple[int, ...]]]:
    return [(step.operation, step.kind, step.members) for step in steps]


def test_what_is_equal_is_one_step_and_what_differs_is_not() -> None:
    relu, tanh = (nn.Sequential(nn.Flatten(), nn.Linear(6, 5), act(), nn.Linear(5, 3)) for act in (nn.ReLU, nn.Tanh))
    other = nn.Sequential(nn.Flatten(), nn.Linear(6, 7), nn.Linear(7, 3))
    found = outlined(relu, other, tanh)
    assert names(found.steps[:2]) == [("input", "input", (0, 1, 2)), ("Flatten", "shared", (0, 1, 2))]
    assert set(names(found.steps[2:])) == {
        ("Linear", "batched", (0, 2)),
        ("ReLU, Tanh", "batched", (0, 2)),
        ("Linear", "loop", (1,)),
    }
    assert found.steps[1].shapes == "6 → 6"
    assert {step.shapes for step in found.steps if step.kind == "loop"} == {"6 → 7", "7 → 3"}
    assert (found.operations, found.looped, found.fused) == (11, 2, 9)
    assert sum(found.kernels.values()) == len(found.steps) - 1
    assert found.kernels["loop"] == 2


def test_who_reads_what() -> None:
    found = outlined(*(nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)) for _ in range(2)))
    assert [step.reads for step in found.steps] == [(), *(((index, 0), (index, 1)) for index in range(3))]
    assert found.outputs == (3, 3)
    assert found.gathers == 0


def test_gathers_are_those_of_the_model() -> None:
    """The first two come from different steps to the last layer; the third one's output comes from another step."""
    model = merged(
        nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 3)),
        nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 5), nn.Linear(5, 3)),
        nn.Linear(6, 2),
    )
    found = outline(model)
    last = next(step for step in found.steps if step.shapes == "5 → 3")
    assert (last.kind, last.members, last.gathers) == ("batched", (0, 1), 1)
    assert found.output_gathers == 1
    assert found.gathers == model.gathers == 2


def test_a_trunk_serves_those_who_have_it() -> None:
    found = outlined(*(nn.Sequential(frozen(width), nn.Linear(width, 3)) for width in (4, 4, 5)))
    assert [step.members for step in found.steps if step.kind == "shared"] == [(0, 1)]
    assert (found.operations, found.looped) == (6, 2), "the third one's layers, which nobody shares"


def test_convolutions_tell_their_windows() -> None:
    images = nn.Sequential(
        nn.Unflatten(1, (6, 1, 1)), nn.Conv2d(6, 6, 3, padding=1, groups=6), nn.Conv2d(6, 4, (1, 3), padding=(0, 1)),
        nn.Conv2d(4, 4, 1, groups=2), nn.Flatten(),
    )  # fmt: skip
    operations = [step.operation for step in outlined(images).steps]
    assert operations[2:5] == ["Conv2d 3x3 depthwise", "Conv2d 1x3", "Conv2d 1x1 of 2 groups"]


def test_a_kernel_with_one_row_fuses_nothing() -> None:
    models = [nn.Sequential(nn.Linear(6, 5), nn.ReLU()) for _ in range(2)]
    plan = Planner().plan([trace(model, Spec.batch(torch.zeros(4, 6))) for model in models])
    relu = plan.batches.pop()
    plan.batches += [Batch([operation], relu.kernel, "measured: gathering costs more") for operation in relu.operations]
    found = outline(MergedModel(plan, [nullcontext()] * 2, [torch.Generator() for _ in models], lambda _, run: run()))
    assert names(found.steps[-2:]) == [("ReLU", "loop", (0,)), ("ReLU", "loop", (1,))]
    assert (found.operations, found.fused) == (4, 2)
    assert found.kernels["pointwise"] == 2


def test_opaque_modules_say_so() -> None:
    found = outlined(*(nn.Sequential(nn.Linear(6, 6), Opaque(), nn.Linear(6, 3)) for _ in range(2)))
    opaque = next(step for step in found.steps if "opaque" in step.operation)
    assert (opaque.operation, opaque.kind, opaque.members) == ("Opaque (opaque)", "loop", (0, 1))
    assert opaque.reason == "no batched kernel"


@pytest.fixture
def planner(tmp_path: Path) -> Planner:
    return Planner(costs=CostModel(torch.device("cpu"), tmp_path))


def test_prices_add_up_to_the_cost_of_the_plan(planner: Planner) -> None:
    models = [nn.Sequential(frozen(5), nn.Linear(5, 3 + i // 2), Opaque(), nn.ReLU()) for i in range(4)]
    plan = merged(*models, planner=planner).plan
    found = prices(plan, planner)
    assert sum(price.seconds for price in found) == pytest.approx(planner.cost(plan))
    for batch, price in zip(plan.batches, found, strict=True):
        several = len(batch.operations) > 1
        assert (price.looped is not None) == several
        if batch.reason == "no batched kernel":
            assert price.batched is None
        elif several:
            assert price.batched is not None
            assert price.batched > 0
            assert price.looped is not None
            assert price.looped > 0


def test_what_was_measured_once_is_not_measured_again(planner: Planner, tmp_path: Path) -> None:
    models = [nn.Sequential(nn.Linear(6, 5), nn.ReLU()) for _ in range(3)]
    prices(merged(*models, planner=planner).plan, planner)
    assert planner.costs is not None
    assert planner.costs.measured > 0
    assert planner.costs.seconds > 0
    planner.costs.save()
    again = Planner(costs=CostModel(torch.device("cpu"), tmp_path))
    prices(merged(*models, planner=again).plan, again)
    assert again.costs is not None
    assert again.costs.path.is_file()
    assert (again.costs.measured, again.costs.seconds) == (0, 0.0)
