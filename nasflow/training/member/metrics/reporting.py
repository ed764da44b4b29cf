"""The events that report a job's members."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from nasflow.clean_text import one_line
from nasflow.config.durations import duration_text
from nasflow.errors import TrialError
from nasflow.job.events import Alert, Epoch, Event, Final
from nasflow.job.spec import JobSpec, stop_mark
from nasflow.json_metrics import finite_metrics, json_metrics


class Reported(Protocol):
    """What a trial needs so that its epochs are reported and saved; attributes as in `Member`."""

    @property
    def number(self) -> int:
        """The number of the trial."""

    @property
    def finished_epochs(self) -> int:
        """How many epochs it has finished."""

    @property
    def history(self) -> list[dict[str, float]]:
        """Its metrics by epoch, the first epoch first."""

    @property
    def seconds(self) -> list[float]:
        """What each epoch took."""

    @property
    def finished(self) -> bool:
        """Whether it has ended."""

    @property
    def stopped_early(self) -> bool:
        """Whether it ended before its last epoch."""

    @property
    def pruned(self) -> bool:
        """Whether it was stopped because others do better."""

    @property
    def parameters(self) -> int:
        """The number of its model's parameters."""

    def state_to_save(self) -> dict[str, Any]:
        """Return all that is needed to continue, at least what `replayed` takes; `Packer.pack` takes it."""


def record_of(trial: Reported) -> dict[str, Any]:
    """Return the part of a saved state that every trial has, however it is trained; `replayed` takes it."""
    return {
        "epoch": trial.finished_epochs,
        "parameters": trial.parameters,
        "finished": trial.finished,
        "stopped_early": trial.stopped_early,
        "pruned": trial.pruned,
        "history": trial.history,
        "seconds": trial.seconds,
    }


def events_of(member: Reported) -> list[Event]:
    """Return the events of a member after an epoch; none before the first."""
    if not member.finished_epochs:
        return []
    reported: list[Event] = [
        _epoch(member.number, member.finished_epochs, member.history[-1], member.seconds[-1], replayed=False)
    ]
    if member.finished:
        reported.append(_final(member.number, member.history, member.parameters, member.stopped_early, member.pruned))
    return reported


def replayed(trial: int, state: Mapping[str, Any]) -> list[Event]:
    """Return the events of all epochs in a trial's checkpoint."""
    reported: list[Event] = [
        _epoch(trial, epoch, metrics, seconds, replayed=True)
        for epoch, (metrics, seconds) in enumerate(zip(state["history"], state["seconds"], strict=True), 1)
    ]
    if state["finished"]:
        ended_by = (state["stopped_early"], state["pruned"])
        reported.append(_final(trial, state["history"], state["parameters"], *ended_by))
    return reported


def _epoch(trial: int, epoch: int, metrics: Mapping[str, float], seconds: float, replayed: bool) -> Epoch:
    return Epoch(trial=trial, epoch=epoch, metrics=json_metrics(metrics), seconds=seconds, replayed=replayed)


def _final(
    trial: int, history: Sequence[Mapping[str, float]], parameters: int, stopped_early: bool, pruned: bool
) -> Final:
    metrics = {"parameters": float(parameters)} | finite_metrics(history[-1])
    epochs = len(history)
    return Final(trial=trial, epochs=epochs, metrics=metrics, stopped_early=stopped_early, pruned=pruned)


def refuse_losses(metrics: Mapping[str, float], epoch: int) -> None:
    """Raise a TrialError if a loss among an epoch's metrics is not finite."""
    for name, value in metrics.items():
        if "loss" in name and not float("-inf") < value < float("inf"):
            raise TrialError(f"{one_line(name)} is {value} after epoch {epoch}")


def must_stop(spec: JobSpec, root: Path, member: Reported) -> Alert | None:
    """Return the alert if a member trained for longer than a trial may, or someone asked for its end; else None."""
    limit, mark = spec.limits.trial, stop_mark(root, member.number)
    if mark.exists():
        mark.unlink()
        why = "that was asked for"
    elif limit is not None and sum(member.seconds) > limit:
        why = f"limits.trial is {duration_text(limit)}"
    else:
        return None
    return Alert(text=f"trial {member.number} stops after epoch {member.finished_epochs}: {why}")
