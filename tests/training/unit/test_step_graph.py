"""Steps that are captured and replayed (`merge.cuda_graphs`), on a CPU by tests/fake_graph.py, which runs no Python."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from nasflow.job.events import Event
from nasflow.job.spec import JobSpec
from nasflow.training.optim.stacked import Stack, StackedOptimizer
from nasflow.training.unit import fused, step_graph
from nasflow.training.unit.step_graph import CudaRecorder
from tests.fake_graph import FakeRecorder, NotCapturableError
from tests.training.fused_jobs import fused_members, same
from tests.training.interrupted import interrupted
from tests.training.jobs import evaluator, evictions, make_job, outcome, sample, train, weights

NUMBERS: dict[str, Any] = {"epochs": 10, "kind": "regression", "data": {"target": "fused_spaces.py:numbers"}}
IMAGES: dict[str, Any] = {**NUMBERS, "data": {"target": "fused_spaces.py:images_to_numbers"}}
BAD = 2
SCHEDULED = {"optimizer": {"name": "sgd", "lr": 0.05}, "schedule": {"name": "one_cycle", "interval": "step"}}


@pytest.fixture(autouse=True)
def by_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Native kernels are no operations of torch."""
    from nasflow.native import library

    monkeypatch.setattr(library, "_library", lambda: None)


@pytest.fixture
def recorders(monkeypatch: pytest.MonkeyPatch) -> list[FakeRecorder]:
    """The recorders that units get, in this order."""
    made: list[FakeRecorder] = []

    def recorder_on(device: torch.device) -> FakeRecorder:
        made.append(FakeRecorder())
        return made[-1]

    def count_step(optimizer: StackedOptimizer) -> None:
        assert not _get_current_dispatch_mode_stack(), "torch stores counts on the CPU, where no graph can change them"
        counted(optimizer)

    counted = StackedOptimizer.count_step
    monkeypatch.setattr(StackedOptimizer, "count_step", count_step)
    monkeypatch.setattr(fused, "recorder_on", recorder_on)
    monkeypatch.setattr(step_graph, "recorder_on", lambda device: FakeRecorder())
    return made


def captured(spec: JobSpec) -> JobSpec:
    """The job with `merge.cuda_graphs`."""
    return spec.model_copy(update={"merge": spec.merge.model_copy(update={"cuda_graphs": True})})


def replays(recorders: list[FakeRecorder]) -> int:
    return sum(recorder.replays for recorder in recorders)


def assert_same(spec: JobSpec, root: Path) -> tuple[list[Event], list[Event]]:
    """A job with and without graphs comes to the same bits; the events of both."""
    plain, graphed = train(spec, root / "plain"), train(captured(spec), root / "graphed")
    assert evictions(graphed).keys() == evictions(plain).keys()
    for member in spec.members:
        if member.trial not in evictions(plain):
            assert outcome(graphed, root / "graphed", member.trial) == outcome(plain, root / "plain", member.trial)
    return plain, graphed


def job(space: str, options: Mapping[str, Any], members: int = 5, **how: Any) -> JobSpec:
    """A job of members without dropout."""
    config = evaluator(**options)
    chosen = [{**values, "dropout": 0.0} for values in sample(space, config, members)]
    return make_job(space, config, chosen, **{"fuse": "always", **how})


@pytest.mark.parametrize(
    "options",
    [
        {"optimizer": {"name": "adamw", "lr": 0.01, "weight_decay": 0.1}, "gradient_clip_val": 0.5},
        {"optimizer": {"name": "adamw", "lr": 0.01}, "gradient_clip_val": 0.1, "gradient_clip_algorithm": "value"},
        {"optimizer": {"name": "sgd", "lr": 0.05, "momentum": 0.9}, "schedule": SCHEDULED["schedule"]},
        {"optimizer": {"name": "sgd", "lr": 0.05, "weight_decay": {"pick": [0.0, 0.1]}}},
        {"optimizer": {"name": "rmsprop", "lr": 0.01}, "schedule": {"name": "cosine"}},
        {"optimizer": {"name": "adagrad", "lr": 0.01}},
        {"optimizer": {"name": "sgd", "lr": 0.05}, "ema": {"decay": 0.9}},
        {"optimizer": {"name": "adam", "lr": 0.01}, "precision": "64-true"},
        {"optimizer": {"name": "adam", "lr": {"float": [1e-3, 1e-1]}}, "precision": "bf16-mixed"},
        {**SCHEDULED, "batches_per_epoch": 3},
    ],
    ids=["clip", "clip value", "momentum", "decay", "rmsprop", "adagrad", "ema", "float64", "bf16", "short epochs"],
)
def test_replayed_steps_are_the_same_bits(options: dict[str, Any], tmp_path: Path, recorders: list[Any]) -> None:
    """Thirty steps, with a smaller last batch in each epoch."""
    _, graphed = assert_same(job("fused_spaces.py:valued", {**NUMBERS, **options}), tmp_path)
    assert len(fused_members(graphed)) == 5
    assert replays(recorders) >= 20


def test_convolutions_and_batch_norm_are_replayed(tmp_path: Path, recorders: list[FakeRecorder]) -> None:
    """And so are the parts of a unit that run from no tape."""
    assert_same(job("fused_spaces.py:images", IMAGES), tmp_path)
    assert replays(recorders) >= 20


def test_a_member_that_diverges_leaves_the_others_as_they_are(tmp_path: Path, recorders: list[FakeRecorder]) -> None:
    """Its losses are read after a run of replays."""
    config = evaluator(
        **NUMBERS,
        optimizer={"name": "adam", "lr": {"float": [1e-3, 1e300], "log": True}},
        schedule={"name": "one_cycle"},
    )
    [first] = sample("fused_spaces.py:valued", config, 1)
    members = [{**first, "dropout": 0.0, "optimizer.lr": 1e300 if i == BAD else 0.01 * (i + 1)} for i in range(5)]
    plain, _ = assert_same(make_job("fused_spaces.py:valued", config, members, fuse="always"), tmp_path)
    assert evictions(plain).keys() == {BAD}
    assert replays(recorders) >= 20


def test_a_unit_that_members_leave_is_captured_anew(tmp_path: Path, recorders: list[FakeRecorder]) -> None:
    """Their rows are dropped before the next epoch, which replaces the memory of all."""
    assert_same(job("fused_spaces.py:valued", {**NUMBERS, **SCHEDULED, "epochs": {"pick": [3, 7, 10]}}), tmp_path)
    assert max(len(recorder.operations) for recorder in recorders) >= 4  # of two sizes of batches, twice or more
    assert replays(recorders) >= 10


def test_a_model_by_itself_is_replayed(tmp_path: Path, recorders: list[FakeRecorder]) -> None:
    assert_same(job("fused_spaces.py:valued", {**NUMBERS, "optimizer": {"name": "sgd", "lr": 0.05}}, 1), tmp_path)
    assert replays(recorders) >= 20


@pytest.mark.parametrize("schedule", [{"name": "cosine"}, SCHEDULED["schedule"]], ids=["epochs", "steps"])
def test_a_rate_that_changes_is_read_by_each_replay(
    schedule: dict[str, Any], tmp_path: Path, recorders: list[FakeRecorder]
) -> None:
    """A member by itself steps by torch's fused kernel, which gets its rate as a tensor."""
    options = {**NUMBERS, "optimizer": {"name": "adam", "lr": 0.01}, "schedule": schedule}
    assert_same(job("fused_spaces.py:valued", options, 1), tmp_path)
    assert replays(recorders) >= 20


@pytest.mark.parametrize(
    "space, options",
    [
        ("fused_spaces.py:valued", {"accumulate_grad_batches": 2}),
        ("fused_spaces.py:valued", {"precision": "16-mixed"}),
        ("fused_spaces.py:counting", {"kind": "classification", "data": {"target": "spaces.py:blobs"}}),
    ],
    ids=["accumulated", "half precision", "own code"],
)
def test_what_is_known_not_to_fit_is_not_captured(
    space: str, options: dict[str, Any], tmp_path: Path, recorders: list[FakeRecorder], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        plain, _ = assert_same(job(space, {**NUMBERS, **options}, 4), tmp_path)
    assert not evictions(plain)
    assert replays(recorders) == 0
    assert "CUDA graphs" not in caplog.text


class Refusing(FakeRecorder):
    """Captures nothing, so that steps are made as without."""

    def capture(self, step: Any) -> Any:
        raise RuntimeError("no")


DROPPING = [{"width0": width, "dropout": rate} for width, rate in [(8, 0.2), (8, 0.7), (8, 0.0), (4, 0.7)]]


def dropping(space: str = "fused_spaces.py:dropped", fuse: Any = "always", **options: Any) -> JobSpec:
    """A job of members with dropout, whose masks come from counters."""
    return captured(make_job(space, evaluator(**{**NUMBERS, **options}), DROPPING, fuse=fuse))


def test_dropout_is_replayed(tmp_path: Path, recorders: list[FakeRecorder], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each replay draws the masks that the step would have drawn without it."""
    spec = dropping()
    graphed = train(spec, tmp_path / "graphed")
    assert len(fused_members(graphed)) == 4
    assert replays(recorders) >= 20
    monkeypatch.setattr(fused, "recorder_on", lambda device: Refusing())
    plain = train(spec, tmp_path / "plain")
    for trial in range(4):
        assert outcome(graphed, tmp_path / "graphed", trial) == outcome(plain, tmp_path / "plain", trial)


@pytest.mark.parametrize("space", ["dropped", "dropped_images"])
def test_members_alone_draw_the_same_masks(space: str, tmp_path: Path, recorders: list[FakeRecorder]) -> None:
    data = {"target": "fused_spaces.py:images_to_numbers"} if space == "dropped_images" else NUMBERS["data"]
    options = {"precision": "64-true", "data": data}
    graphed = train(dropping(f"fused_spaces.py:{space}", **options), tmp_path / "graphed")
    alone = train(dropping(f"fused_spaces.py:{space}", "never", **options), tmp_path / "alone")
    assert len(fused_members(graphed)) >= 3 and not fused_members(alone)
    for trial in range(4):
        same(outcome(graphed, tmp_path / "graphed", trial), outcome(alone, tmp_path / "alone", trial), 1e-9)


def test_a_killed_job_goes_on_with_the_next_masks(tmp_path: Path, recorders: list[FakeRecorder]) -> None:
    spec = dropping()
    whole = train(spec, tmp_path / "whole")
    events = interrupted(spec, tmp_path / "killed", 2, 5)
    events += [event for event in train(spec, tmp_path / "killed") if event not in events]
    for trial in range(4):
        assert outcome(events, tmp_path / "killed", trial) == outcome(whole, tmp_path / "whole", trial)
    assert not any("stream" in name for name in weights(tmp_path / "whole", 1))


def test_other_dropouts_are_not_captured(
    tmp_path: Path, recorders: list[FakeRecorder], caplog: pytest.LogCaptureFixture
) -> None:
    """Their numbers would be those of the capture, in each step. The job's log, which has warnings, says so."""
    members = [{"dropout": 0.2} for _ in range(4)]
    with caplog.at_level(logging.WARNING):
        assert_same(
            make_job("fused_spaces.py:dropped_by_function", evaluator(**NUMBERS), members, fuse="always"), tmp_path
        )
    assert replays(recorders) == 0
    said = [line for line in caplog.messages if "CUDA graphs" in line]
    assert len(said) == len(recorders) and all("draws random numbers" in line for line in said)


def test_a_killed_job_goes_on_to_the_same_bits(tmp_path: Path, recorders: list[FakeRecorder]) -> None:
    spec = job("fused_spaces.py:valued", {**NUMBERS, **SCHEDULED})
    plain = train(spec, tmp_path / "plain")
    events = interrupted(captured(spec), tmp_path / "graphed", 2, 5)
    events += [event for event in train(captured(spec), tmp_path / "graphed") if event not in events]
    for trial in range(5):
        whole = outcome(plain, tmp_path / "plain", trial)
        assert outcome(events, tmp_path / "graphed", trial) == whole
    assert replays(recorders) > 0


def test_the_fake_executes_nothing_while_it_records() -> None:
    x, y = torch.ones(3), torch.zeros(3)
    recorder = FakeRecorder()

    def step() -> torch.Tensor:
        y.add_(x * 2)
        return y + 1

    result, replay = recorder.capture(step)
    assert y.tolist() == [0, 0, 0]
    x.fill_(5)
    replay()
    assert y.tolist() == [10, 10, 10] and result.tolist() == [11, 11, 11]
    replay()
    assert y.tolist() == [20, 20, 20] and result.tolist() == [21, 21, 21]
    with pytest.raises(NotCapturableError, match="the host reads"):
        recorder.capture(lambda: torch.tensor(x.sum().item()))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize(
    ("space", "options"),
    [
        ("valued", {**NUMBERS, "optimizer": {"name": "adamw", "lr": 0.01}, "gradient_clip_val": 0.5}),
        ("valued", {**NUMBERS, **SCHEDULED}),
        ("images", IMAGES),
        ("images", {"epochs": 10, "data": {"target": "spaces.py:images"}}),
    ],
)
def test_replayed_steps_on_a_gpu(
    space: str, options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Equal up to rounding: cuBLAS and cuDNN may choose other kernels in a capture."""
    captures: list[object] = []
    capture = CudaRecorder.capture

    def counted(self: CudaRecorder, step: Any) -> Any:
        captures.append(step)
        return capture(self, step)

    monkeypatch.setattr(CudaRecorder, "capture", counted)
    spec = job(f"fused_spaces.py:{space}", {**options, "precision": "64-true"})
    plain, graphed = train(spec, tmp_path / "plain"), train(captured(spec), tmp_path / "graphed")
    assert captures and not evictions(graphed)
    for trial in range(5):
        same(outcome(graphed, tmp_path / "graphed", trial), outcome(plain, tmp_path / "plain", trial))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_members_alone_draw_the_same_masks_on_a_gpu(tmp_path: Path) -> None:
    graphed = train(dropping(precision="64-true"), tmp_path / "graphed")
    alone = train(dropping(fuse="never", precision="64-true"), tmp_path / "alone")
    for trial in range(4):
        same(outcome(graphed, tmp_path / "graphed", trial), outcome(alone, tmp_path / "alone", trial))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_an_update_is_as_many_launches_for_many_stacks_as_for_one() -> None:
    def launches(shapes: int) -> int:
        stacks, makes = [], []
        for width in range(shapes):
            whole = torch.zeros(3, width + 1, device="cuda", requires_grad=True)
            rows = tuple(torch.nn.Parameter(row) for row in whole.detach().unbind(0))
            for row, place in zip(rows, whole.detach().unbind(0), strict=True):
                row.data = place
            stacks.append(Stack(whole, rows, (0, 1, 2)))
        for member in range(3):
            makes.append(torch.optim.AdamW([stack.parameters[member] for stack in stacks], lr=0.01 * (member + 1)))
        optimizer = StackedOptimizer(makes, stacks, [None] * 3)
        for _ in range(3):
            for stack in stacks:
                stack.tensor.grad = torch.ones_like(stack.tensor)
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
                optimizer.step()
        return sum(event.count for event in profile.key_averages() if event.device_type.name == "CUDA")

    assert launches(12) == launches(2)
