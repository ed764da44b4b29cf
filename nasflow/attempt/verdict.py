"""The cause of a job's end, and what follows from it: whether the infrastructure or its trials are to blame.

Pure functions of their arguments. Which trial is to blame is decided by `follower.AttemptFollower._suspects`, from the
job's recorded activity.
"""

import signal
from dataclasses import dataclass

from nasflow.job.events import Ended
from nasflow.job.spec import CANNOT_WRITE, DEVICE_FAULT
from nasflow.study.records import AttemptState
from nasflow.training_service.base import JobState, JobStatus
from nasflow.trial import FailureKind

# Signals that a program's own actions raise; any other was sent from outside.
_OWN_SIGNALS = {signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSYS}
_KILLED = "the kernel ended the job's process for want of memory"
_TAKEN = "that others had taken"
_LACKING = ("OutOfMemoryError: ", "MemoryError", _KILLED)  # of torch, and of Python
_BYSTANDER = 0.5  # of its slot's share of memory; if a job that used less was killed, others had taken the memory


@dataclass(frozen=True)
class Verdict:
    """How an attempt ended.

    Attributes:
        error: why the job as a whole failed; None if it did not. Numbers, which differ each time, are in
            its second line.
        out_of_memory: whether the members that trained at a time need more memory than there is.
        device_fault: whether one of them made the GPU unusable, which does not tell which one.
    """

    state: AttemptState
    failure: FailureKind | None = None
    error: str | None = None
    out_of_memory: bool = False
    device_fault: bool = False

    @property
    def by_all(self) -> bool:
        """Whether all members that trained at a time are suspects, so that fewer should do so the next time."""
        return self.out_of_memory or self.device_fault


def judge(state: JobState, ended: Ended | None, evicted: bool = False, log_tail: str = "") -> Verdict:
    """Return the verdict on a finished job.

    Args:
        state: of the job, with the evidence.
        ended: the job's last event, None if its process ended without it.
        evicted: whether members failed on their own.
        log_tail: the last lines of what the job printed.
    """
    if ended is not None and (ended.infrastructure or ended.refused):  # no trial is to blame
        if state.status is JobStatus.CANCELLED:
            return _cancelled()
        return _lost(ended.error or "the job could not go on where it was")
    if state.limit is not None and (ended is None or ended.error is not None):  # it failed while it was being ended
        return _too_long(state)
    if ended is not None:
        failed = ended.error is not None or evicted
        kind = FailureKind.TRIAL if failed else None
        return Verdict(AttemptState.FAILED if failed else AttemptState.SUCCEEDED, kind, ended.error)
    if state.status is JobStatus.CANCELLED:
        return _cancelled()
    if state.status is JobStatus.LOST:
        return _lost(f"the job was lost: {state.reason}")
    if state.signal == signal.SIGKILL and state.oom_kills:
        return _out_of_memory(state)
    if state.signal is not None:
        name = _signal_name(state.signal)
        if state.signal in _OWN_SIGNALS:
            return _crashed(f"the job's process crashed with {name}")
        known = state.signal == signal.SIGKILL and state.oom_kills == 0
        return _lost(f"the job's process was ended by {name}{', not for want of memory' if known else ''}")
    error = f"the job's process exited with code {state.exit_code} before its end"
    if state.exit_code == CANNOT_WRITE:
        return _lost(f"{error}\n{log_tail}")
    if state.exit_code == DEVICE_FAULT:
        error = f"the GPU could not be used any more after what was computed there\n{log_tail}"
        return Verdict(AttemptState.FAILED, FailureKind.TRIAL, error, device_fault=True)
    return _crashed(f"{error}\n{log_tail}" if log_tail else error)


def _out_of_memory(state: JobState) -> Verdict:
    """Attribute it to the job if it used its share of memory, or its use is unknown; else to the infrastructure."""
    if state.peak_rss is None or state.memory_share is None:
        return Verdict(AttemptState.FAILED, FailureKind.TRIAL, _KILLED, out_of_memory=True)
    held = f"it held {_gib(state.peak_rss)}, its slot's share is {_gib(state.memory_share)}"
    if state.peak_rss < _BYSTANDER * state.memory_share:
        return _lost(f"{_KILLED} {_TAKEN}\n{held}")
    return Verdict(AttemptState.FAILED, FailureKind.TRIAL, f"{_KILLED}\n{held}", out_of_memory=True)


def lacks_memory(error: str | None) -> bool:
    """Whether the error of a trial, or of a job that had no other, says that it needs more memory than there is."""
    headline = (error or "").partition("\n")[0]
    return headline.startswith(_LACKING) and _TAKEN not in headline


def _too_long(state: JobState) -> Verdict:
    """Blame the trials for a limit, but for that of a job, which says nothing about them."""
    if state.limit == "job":
        return _lost(state.reason)
    return _crashed(f"{state.reason}\n{state.stack}" if state.stack else state.reason)


def _cancelled() -> Verdict:
    return Verdict(AttemptState.CANCELLED, FailureKind.INFRASTRUCTURE, "the job was cancelled")


def _lost(error: str) -> Verdict:
    return Verdict(AttemptState.FAILED, FailureKind.INFRASTRUCTURE, error)


def _crashed(error: str) -> Verdict:
    return Verdict(AttemptState.FAILED, FailureKind.TRIAL, error)


def _signal_name(number: int) -> str:
    """Return a signal's name; of real-time signals only the first and the last have one."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _gib(size: int) -> str:
    return f"{size / 2**30:.2f} GiB"
