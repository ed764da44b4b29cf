"""Faults in fused units: a bad member hurts only itself, and a unit that can't run breaks up."""

import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from nasflow.config.search import EvaluatorConfig
from nasflow.job import activity
from nasflow.job.events import Final, Planned
from nasflow.merge.kernels.linear import BatchedLinear
from nasflow.merge.kernels.norm import BatchedBatchNorm
from nasflow.training.job_driver import JobDriver
from nasflow.training.unit.fused import FusedUnit
from nasflow.training.unit.member_step import Subject
from tests.training.fused_jobs import fused_and_apart, fused_members
from tests.training.jobs import BLOBS, evaluator, evictions, make_job, outcome, sample, train

EXACT: dict[str, Any] = {"precision": "64-true", "epochs": 2, "data": BLOBS | {"params": {"batch_size": 24}}}
IMAGES = {"data": {"target": "spaces.py:images", "params": {"batch_size": 24}}}
LR = {"float": [1e-3, 1e-1], "log": True}
BAD = 2
FAILING = "fused_spaces.py:failing"


def with_and_without(
    space: str, config: EvaluatorConfig, root: Path, fault: Mapping[str, Any], none: Mapping[str, Any]
) -> str:
    """Train members with one that is bad, and the same with that one sound: of the others all bits are the same.

    Returns:
        What the bad one is told to have raised.
    """
    members = {trial: {**values, **none} for trial, values in enumerate(sample(space, config, 6))}
    sound = train(make_job(space, config, members, fuse="always"), root / "sound")
    members[BAD] |= fault
    events = train(make_job(space, config, members, fuse="always"), root / "bad")
    assert fused_members(sound) == members.keys()
    assert fused_members(events) >= members.keys() - {BAD}
    assert not evictions(sound)
    assert evictions(events).keys() == {BAD}
    for trial in members.keys() - {BAD}:
        assert outcome(events, root / "bad", trial) == outcome(sound, root / "sound", trial), trial
    return evictions(events)[BAD].error


@pytest.mark.parametrize("precision", ["32-true", "64-true", "bf16-mixed"])
@pytest.mark.parametrize("space", ["mixed", "images"])
def test_a_member_that_diverges(space: str, precision: str, tmp_path: Path) -> None:
    """In the middle of an epoch; the others go on beside its rows, and without them from the next epoch on."""
    data = {"target": "spaces.py:images"} if space == "images" else BLOBS
    changes = {"precision": precision, "epochs": 3, "data": {**data, "params": {"batch_size": 24}}}
    lrs = {"float": [1e-3, 1e300], "log": True}
    config = evaluator(**changes, optimizer={"name": "adamw", "lr": lrs}, gradient_clip_val=0.5)
    lr = {"optimizer.lr": 0.01}
    error = with_and_without(f"fused_spaces.py:{space}", config, tmp_path, dict.fromkeys(lr, 1e300), lr)
    assert "training loss is" in error


@pytest.mark.parametrize(
    ("fault", "after"), [("raise", 2), ("raise", 6), ("exit", 2), ("exit", 6), ("nan", 1), ("nan", 6)]
)
def test_a_member_whose_own_code_fails(fault: str, after: int, tmp_path: Path) -> None:
    config = evaluator(**EXACT | {"epochs": 3})
    none = {"fault": "none", "after": 6}
    error = with_and_without("fused_spaces.py:failing", config, tmp_path, {"fault": fault, "after": after}, none)
    assert {"raise": "a layer gave up", "exit": "SystemExit", "nan": "loss is nan"}[fault] in error


def test_want_of_memory_in_a_members_own_code_is_nobodys(tmp_path: Path) -> None:
    """All of them have filled the memory: they go on in smaller units."""
    config = evaluator(**EXACT)
    members = {trial: {**values, "fault": "none"} for trial, values in enumerate(sample(FAILING, config, 4))}
    members[BAD] |= {"fault": "memory", "after": 6}
    events = train(make_job(FAILING, config, members, fuse="always"), tmp_path)
    assert not evictions(events)
    assert {event.trial for event in events if isinstance(event, Final)} == members.keys()
    *_, last = [event for event in events if isinstance(event, Planned)]
    assert max((len(unit.members) for unit in last.units), default=1) <= 2


@pytest.mark.parametrize("fuse", ["always", "measured"])
def test_members_that_fail_before_they_can_be_fused(fuse: str, tmp_path: Path) -> None:
    config, space = evaluator(**EXACT), "fused_spaces.py:failing"
    members = {trial: {**values, "after": 1} for trial, values in enumerate(sample(space, config, 6))}
    for trial, values in members.items():
        values["fault"] = {1: "raise", 3: "exit"}.get(trial, "none")
    events = fused_and_apart(space, config, tmp_path, members, fuse=fuse, all_fused=False)
    assert evictions(events).keys() == {1, 3}


@pytest.mark.parametrize("fuse", ["always", "measured", "never"])
def test_a_members_code_is_always_recorded_as_running(
    fuse: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """While it is traced, measured and saved, too: else nobody is to blame if it hangs or exits there."""
    config, file = evaluator(**EXACT), tmp_path / "watched"
    monkeypatch.setenv("WATCHED", str(file))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))  # nothing is measured yet
    members = dict(enumerate(sample("fused_spaces.py:watched", config, 3)))
    with activity.recorded_in(file):
        train(make_job("fused_spaces.py:watched", config, members, fuse=fuse), tmp_path / "root")
    calls = file.with_suffix(".calls").read_text().split()
    assert set(calls) == {"0", "1", "2"}


def test_a_member_whose_error_has_no_text(tmp_path: Path) -> None:
    config = evaluator(**EXACT)
    error = with_and_without("fused_spaces.py:unprintable", config, tmp_path, {"bad": True}, {"bad": False})
    assert error.startswith("Unprintable: ")


def test_a_compacted_unit_has_lost_its_rows(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Else the equalities above would say nothing of it."""
    sizes: list[int] = []
    build = FusedUnit._build
    monkeypatch.setattr(FusedUnit, "_build", lambda unit: (build(unit), sizes.append(len(unit._rows))))
    config = evaluator(**EXACT | {"epochs": 3})
    none = {"fault": "none", "after": 6}
    with_and_without("fused_spaces.py:failing", config, tmp_path, {"fault": "raise", "after": 2}, none)
    assert sizes == [6, 6, 5]


class Raises:
    """Takes the place of a kernel's method: raises at a call, or at all from one on."""

    def __init__(self, method: Callable[..., Any], at: int, always: bool, error: Exception):
        self.method, self.at, self.always, self.error, self.calls = method, at, always, error, 0

    def __get__(self, kernel: object, kind: type) -> Callable[..., Any]:
        return lambda *args: self.call(kernel, *args)

    def call(self, kernel: object, *args: Any) -> Any:
        self.calls += 1
        if self.calls == self.at or (self.always and self.calls > self.at):
            raise self.error
        return self.method(kernel, *args)


@pytest.mark.parametrize("always", [False, True])
@pytest.mark.parametrize(
    ("name", "at"), [("__init__", 1), ("__call__", 1), ("__call__", 6), ("__call__", 14), ("__call__", 20)]
)
def test_a_kernel_that_fails(name: str, at: int, always: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """When a unit is built, tried, trained, scored: its members go on in smaller ones, from their last checkpoint."""
    raises = Raises(getattr(BatchedLinear, name), at, always, torch.OutOfMemoryError("no room"))
    monkeypatch.setattr(BatchedLinear, name, raises)
    events = fused_and_apart("fused_spaces.py:mixed", evaluator(**EXACT), tmp_path, 5, all_fused=False)
    assert raises.calls > at
    assert not evictions(events)
    *_, last = [event for event in events if isinstance(event, Planned)]
    assert max((len(unit.members) for unit in last.units), default=1) <= 3
    assert any("baddbmm" in unit.kernels for unit in last.units) is not always


class FailsOnce:
    """Takes the place of a kernel's method: raises at its 14th call, in training, where it has computed a tensor."""

    def __init__(self, said: str):
        self.said, self.own, self.calls = said, BatchedLinear.__call__, 0
        self.computed: weakref.ref[torch.Tensor] | None = None

    def __get__(self, kernel: object, kind: type) -> Callable[..., Any]:
        return lambda *args: self.call(kernel, *args)

    def call(self, kernel: Any, *args: Any) -> Any:
        self.calls += 1
        if self.calls == 14:
            computed = torch.zeros(3)
            self.computed = weakref.ref(computed)
            raise RuntimeError(self.said)
        return self.own(kernel, *args)

    @property
    def is_held(self) -> bool:
        return self.computed is not None and self.computed() is not None


@pytest.mark.parametrize(
    "said",
    [
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "GET was unable to find an engine to execute this computation",
        "[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory: you tried to allocate 2 bytes",
        "no kernel for this",
    ],
)
def test_members_are_not_blamed_for_memory_that_their_unit_holds(
    said: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Their own steps have no room while it does."""
    fails, own = FailsOnce(said), Subject.own_step

    def own_step(subject: Subject, batch: Any) -> Any:
        if fails.is_held:
            raise RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`")
        return own(subject, batch)

    monkeypatch.setattr(BatchedLinear, "__call__", fails)
    monkeypatch.setattr(Subject, "own_step", own_step)
    events = fused_and_apart("fused_spaces.py:mixed", evaluator(**EXACT), tmp_path, 5, all_fused=False)
    assert fails.computed is not None and not evictions(events)


def test_a_step_that_is_cut_short_keeps_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The others are built again once what it has computed is free."""
    fails, own, take_back = FailsOnce("no kernel for this"), Subject.own_step, JobDriver._take_back
    kept: list[weakref.ref[torch.Tensor]] = []
    free: list[bool] = []

    def own_step(subject: Subject, batch: Any) -> Any:
        if fails.computed is not None and not kept:
            computed = torch.zeros(3)
            kept.append(weakref.ref(computed))
            raise ValueError("a layer gave up")
        return own(subject, batch)

    def taken_back(driver: JobDriver, members: Any) -> None:
        free.append(not fails.is_held and kept[0]() is None)
        take_back(driver, members)

    monkeypatch.setattr(BatchedLinear, "__call__", fails)
    monkeypatch.setattr(Subject, "own_step", own_step)
    monkeypatch.setattr(JobDriver, "_take_back", taken_back)
    members = dict(enumerate(sample("fused_spaces.py:mixed", evaluator(**EXACT), 5)))
    events = train(make_job("fused_spaces.py:mixed", evaluator(**EXACT), members, fuse="always"), tmp_path)
    assert len(evictions(events)) == 1 and free == [True]


def test_a_backward_that_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def call(kernel: BatchedBatchNorm, inputs: list[Any], training: bool) -> torch.Tensor:
        output = own(kernel, inputs, training)
        if output.requires_grad:
            output.register_hook(fail)
        return output

    def fail(_: torch.Tensor) -> None:
        raise RuntimeError("no way back")

    own = BatchedBatchNorm.__call__
    monkeypatch.setattr(BatchedBatchNorm, "__call__", call)
    events = fused_and_apart("fused_spaces.py:images", evaluator(**EXACT | IMAGES), tmp_path, 4, all_fused=False)
    assert not evictions(events)


def test_targets_that_no_model_fits(tmp_path: Path) -> None:
    """Every member fails, each told why, and the job ends."""
    config = evaluator(**EXACT | {"data": {"target": "fused_spaces.py:four_classes"}})
    events = fused_and_apart("fused_spaces.py:mixed", config, tmp_path, 3)
    assert all("evaluator.data: 3 is no class of the model" in event.error for event in evictions(events).values())
    assert len(evictions(events)) == 3


def test_metrics_that_can_not_be_computed(tmp_path: Path) -> None:
    """R2 of one sample."""
    data = {"target": "fused_spaces.py:one_number"}
    config = evaluator(**EXACT | {"data": data}, kind="regression", metrics=["r2"])
    events = fused_and_apart("fused_spaces.py:valued", config, tmp_path, 3)
    assert all("at least two samples" in event.error for event in evictions(events).values())
    assert len(evictions(events)) == 3


@pytest.mark.parametrize("name", ["seeing", "mixing_up", "raising"])
def test_passes_of_the_users(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """One that does no harm is used; one that does is found out, and its members train by themselves."""
    monkeypatch.setenv("SEEN_BY_A_PASS", str(tmp_path / "seen"))
    config, passes = evaluator(**EXACT), [f"fused_passes.py:{name}"]
    events = fused_and_apart("fused_spaces.py:mixed", config, tmp_path, 4, passes=passes, all_fused=name == "seeing")
    assert not evictions(events)
    assert bool(fused_members(events)) == (name == "seeing")
    assert (tmp_path / "seen").read_text().startswith("4 members, not batched yet")


def test_units_that_can_not_be_planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel of nasflow's that fails on a model costs no trial."""

    def fits(node: object) -> bool:
        raise IndexError("tuple index out of range")

    monkeypatch.setattr(BatchedBatchNorm, "fits", fits)
    config = evaluator(**EXACT)
    members = sample("fused_spaces.py:mixed", config, 4)
    events = train(make_job("fused_spaces.py:mixed", config, members, fuse="measured"), tmp_path)
    assert not evictions(events) and not fused_members(events)
    assert {event.trial for event in events if isinstance(event, Final)} == set(range(4))
    [reasons] = [event.alone for event in events if isinstance(event, Planned)]
    assert all("planning its unit failed: IndexError" in reason for reason in reasons.values()), reasons
