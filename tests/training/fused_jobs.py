"""Jobs whose members are fused, beside the same members stepped one by one."""

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from nasflow.checkpoint.packing import unpack
from nasflow.checkpoint.store import CheckpointStore
from nasflow.config.search import EvaluatorConfig
from nasflow.evaluator.candidate import candidate_space
from nasflow.evaluator.ready_made.optimizers import make_optimizer
from nasflow.job.events import Event, Planned
from nasflow.job.spec import JobSpec, trial_dir
from nasflow.training.member.rng import RngStream
from nasflow.training.member_maker import load_job_data
from tests.training.interrupted import interrupted
from tests.training.jobs import Outcome, evictions, make_job, outcome, sample, train

TOLERANCE = 1e-9


def fused_members(events: Iterable[Event]) -> set[int]:
    """The members that were in a unit with others at some time."""
    units = [unit for event in events if isinstance(event, Planned) for unit in event.units]
    return {member for unit in units for member in unit.members}


def same(one: Outcome, other: Outcome, tolerance: float = TOLERANCE) -> None:
    """Two outcomes are equal up to rounding: metrics, weights, optimizer, schedules, streams."""
    whole, parts = ({**vars(o), "state": unpack(o.values, o.tensors)} for o in (one, other))
    for name in ("epochs", "final", "stopped_early", "state"):
        _same(whole[name], parts[name], tolerance, name)


def _same(one: Any, other: Any, tolerance: float, where: str) -> None:
    if isinstance(one, dict) and isinstance(other, dict):
        assert one.keys() == other.keys(), where
        for key, value in one.items():
            _same(value, other[key], tolerance, f"{where}/{key}")
    elif isinstance(one, list | tuple) and isinstance(other, list | tuple):
        assert len(one) == len(other), where
        for index, (a, b) in enumerate(zip(one, other, strict=True)):
            _same(a, b, tolerance, f"{where}/{index}")
    elif isinstance(one, torch.Tensor):
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance, msg=lambda text: f"{where}: {text}")
    elif isinstance(one, float) and isinstance(other, float):
        assert math.isclose(one, other, rel_tol=tolerance, abs_tol=tolerance), (where, one, other)
    else:
        assert one == other, (where, one, other)


class Apart:
    """Runs jobs that step their members one by one, each such job once: tests of the same members share it.

    Args:
        folder: where the jobs run.
    """

    def __init__(self, folder: Path):
        self._folder = folder
        self._known: dict[str, tuple[list[Event], Path]] = {}

    def train(self, spec: JobSpec) -> tuple[list[Event], Path]:
        """A job's events, and its root."""
        assert spec.merge.fuse == "never"
        key = spec.model_dump_json()
        if key not in self._known:
            root = self._folder / str(len(self._known))
            self._known[key] = train(spec, root), root
        return self._known[key]


def fused_and_apart(
    space: str,
    config: EvaluatorConfig,
    root: Path,
    members: int | Mapping[int, Mapping[str, Any]] = 4,
    *,
    tolerance: float = TOLERANCE,
    all_fused: bool = True,
    shared: Apart | None = None,
    **options: Any,
) -> list[Event]:
    """Train members fused and one by one: the same becomes of each.

    Args:
        members: how many to sample, or the members themselves.
        all_fused: whether all must have been in units with others.
        shared: steps them one by one, once for several comparisons; by default in `root/apart`, for this one only.
        options: of the fused job.

    Returns:
        The events of the fused job.
    """
    drawn = dict(enumerate(sample(space, config, members))) if isinstance(members, int) else members
    fused = train(make_job(space, config, drawn, **{"fuse": "always", **options}), root / "fused")
    alone = make_job(space, config, drawn)
    apart, place = shared.train(alone) if shared else (train(alone, root / "apart"), root / "apart")
    assert evictions(fused).keys() == evictions(apart).keys()
    for trial in drawn.keys() - evictions(fused).keys():
        same(outcome(fused, root / "fused", trial), outcome(apart, place, trial), tolerance)
    assert not all_fused or fused_members(fused) == drawn.keys()
    reasons = [reason for event in fused if isinstance(event, Planned) for reason in event.alone.values()]
    assert not all_fused or evictions(fused) or "a unit that it was in has failed" not in reasons
    return fused


def interrupted_as_whole(spec: JobSpec, root: Path) -> list[Event]:
    """A job that is interrupted after its first or second epoch goes on to the same bits; the events of the whole."""
    whole = train(spec, root / "whole")
    for epoch in (1, 2):
        place = root / f"stopped-{epoch}"
        interrupted(spec, place, 1, epoch)
        events = train(spec, place)
        for member in spec.members:
            same(outcome(whole, root / "whole", member.trial), outcome(events, place, member.trial), 0.0)
    return whole


def resumed_exactly(spec: JobSpec, root: Path) -> None:
    """A job that is interrupted after its second epoch ends with the very checkpoints of one that is not."""
    whole = train(spec, root / "once")
    interrupted(spec, root / "twice", trial=2, epoch=2)
    again = train(spec, root / "twice")
    assert not evictions(whole) and not evictions(again)
    for member in spec.members:
        assert outcome(again, root / "twice", member.trial) == outcome(whole, root / "once", member.trial)


def plain_training(
    spec: JobSpec, trial: int, root: Path, epoch: int
) -> tuple[nn.Module, torch.optim.Optimizer, RngStream, Iterable[Any]]:
    """What a trial needs to go on from its newest checkpoint without nasflow, and the batches of that epoch."""
    member = next(member for member in spec.members if member.trial == trial)
    candidate = candidate_space(spec.space, spec.evaluator, spec.base_dir).build(member.architecture)
    state = CheckpointStore(trial_dir(root, trial)).load_newest()
    assert state is not None
    model, stream = candidate.model.double(), RngStream(0)
    model.load_state_dict({name.removeprefix("model."): tensor for name, tensor in state["module"].items()})
    optimizer = make_optimizer(candidate.config.optimizer, model.parameters())  # type: ignore[union-attr]
    optimizer.load_state_dict(state["fitting"]["optimizer"])
    stream.load_state_dict(state["rng"])
    loader = load_job_data(spec.data, spec.base_dir, spec.data_seed).train
    loader.epoch = epoch  # type: ignore[attr-defined]
    return model, optimizer, stream, loader
