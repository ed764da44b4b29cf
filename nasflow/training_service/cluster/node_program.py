"""The program of a job on a cluster: `python -m nasflow.training_service.cluster.node_program ROOT JOB TOKEN`.

It runs one job as a child and writes to a file how that ended. When the cluster ends it (by SIGTERM, or by the end of
the cluster's own processes), or the controller does by a file, it first ends everything that the job started, as the
local service's workers do: clusters track a job's processes by means that these can escape.
"""

import argparse
import math
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from nasflow.job.events import Ended, EventWriter
from nasflow.job.node_jobs import node_job, why_ended
from nasflow.job.spec import INVITATION, job_dir
from nasflow.load_target import load_target
from nasflow.system.memory import memory_limit
from nasflow.training_service.base import JobState, JobStatus
from nasflow.training_service.cluster.runs import Run
from nasflow.training_service.files.controller_calls import ControllerCalls
from nasflow.training_service.machine.job_process import NOTICE, run_in_child
from nasflow.training_service.machine.processes import adopt_orphans, die_with_parent

_LOOK = 0.25  # seconds between two checks whether the controller has asked the run to end
_LOOK_AT_OTHERS = 1.0  # seconds between two checks whether another machine is taken back, which lists a folder
_OTHERS_BEGIN_WITHIN = 600.0  # seconds
_SIGNALS_ARRIVE_WITHIN = 2.0  # seconds between the first and the last process of a job that a cluster signals


class _EndReason:
    """Collects why the job must end; called, it returns the reason, or an empty string.

    Args:
        nodes: how many machines the run has.

    Attributes:
        signalled: whether that is because this machine, or another one of the run, is taken back.
    """

    def __init__(self, run: Run, calls: ControllerCalls, nodes: int):
        self._run, self._calls, self._looked, self.why = run, calls, time.monotonic(), ""
        self._looked_at_others = self._looked if nodes > 1 else math.inf
        self.signalled = False

    def by_signal(self, number: int, _: object) -> None:
        """Signal handler."""
        self.signalled = self.signalled or not self.why
        self.why = self.why or f"its program on the node was ended by {signal.Signals(number).name}"

    def __call__(self) -> str:
        if not self.why and time.monotonic() - self._looked >= _LOOK:
            self._looked = time.monotonic()
            why = self._look()
            self.why = self.why or why  # a signal may have come meanwhile
        return self.why

    def _look(self) -> str:
        if why := self._of_controller():
            return why
        if self._looked - self._looked_at_others >= _LOOK_AT_OTHERS:
            self._looked_at_others = self._looked
            self.signalled |= self._run.is_leaving()
        if self.signalled:
            return "another of its machines is taken back"
        return ""

    def _of_controller(self) -> str:
        return self._calls.missing() if self._run.is_current() else "the controller asked it to end"


class _EndOfOther(_EndReason):
    """The same for what takes part on another machine than the first: it ends with the run.

    If this machine is taken back, the first one learns that, and has the time to save the job.
    """

    def __init__(self, run: Run, calls: ControllerCalls, before: _EndReason):
        super().__init__(run, calls, 1)
        self._signal_at = time.monotonic() if before.signalled else None

    def by_signal(self, number: int, _: object) -> None:
        """Signal handler."""
        self._signal_at = self._signal_at or time.monotonic()

    def _look(self) -> str:
        if self._signal_at is not None and not self.signalled:
            self.signalled = True
            self._run.leave()
        if self._run.ended() is not None:
            return "the job has ended"
        if self._signal_at is not None and time.monotonic() - self._signal_at > NOTICE:
            return "its program on the node was ended"
        return self._of_controller()


def run_one(run: Run, runner: str, memory_share: int, calls: ControllerCalls, nodes: int = 1) -> int:
    """Run a job to its end and record the outcome; do nothing if other processes have begun the run.

    Of a run on several machines, each of which has such a process, the first that begins runs the job. The others take
    part in it until it ends, or they can't any more, which ends the run.

    Returns:
        The exit code: 0, or 1 from a machine that could not take part to the end.
    """
    end = _EndReason(run, calls, nodes)
    _listen(end)
    die_with_parent(os.getppid(), signal.SIGTERM)
    adopt_orphans()
    place = run.take_place(nodes)
    if place is None:
        sys.stderr.write(f"run {run.token} of job {run.job_id} has begun elsewhere\n")
        return 0
    os.chdir(run.root)
    job_id = node_job(run.job_id, place)

    def start(end: _EndReason) -> JobState:
        return run_in_child(
            job_dir(run.root, job_id) / "job.json",
            lambda job: int(load_target(runner, run.root)(job)),
            end,
            memory_share,
            by_signal=lambda: end.signalled,
        )

    if not place:
        run.end(_outcome(run, nodes, end, start))
        return 0
    end = _EndOfOther(run, calls, end)
    _listen(end)
    if start(end).status is not JobStatus.EXITED:
        return int(end.signalled)
    sys.stderr.write(f"machine {place} of the job takes part no more: {why_ended(run.root, job_id)}\n")
    return 1


def _outcome(run: Run, nodes: int, end: _EndReason, start: Callable[[_EndReason], JobState]) -> JobState:
    """Run the job once all machines are there, and return how it ended."""
    if not run.is_current():  # after it has begun: a controller tells it to end, and then checks whether it has begun
        return JobState(status=JobStatus.LOST, reason="it was asked to end before it began")
    folder = job_dir(run.root, run.job_id)
    (folder / INVITATION).unlink(missing_ok=True)  # of an earlier run
    if why := _await_others(run, nodes, end):
        return JobState(status=JobStatus.LOST, reason=why) if end.why else _give_way(folder, why)
    state = start(end)
    if state.signal == signal.SIGTERM:
        _await_signal(end)
    # some clusters also signal the job's process
    if end.why and state.signal in (signal.SIGTERM, signal.SIGKILL):
        return JobState(status=JobStatus.LOST, reason=end.why)
    return state


def _await_signal(end: _EndReason) -> None:
    """Wait for the signal that a cluster may send this process, after that to the job's."""
    deadline = time.monotonic() + _SIGNALS_ARRIVE_WITHIN
    while not end() and time.monotonic() < deadline:
        time.sleep(_LOOK)


def _listen(end: _EndReason) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end.by_signal)


def _await_others(run: Run, nodes: int, end: Callable[[], str]) -> str:
    """Wait until all machines of a run have begun; return why this must end, or an empty string."""
    deadline = time.monotonic() + _OTHERS_BEGIN_WITHIN
    while (taken := run.places_taken(nodes)) < nodes:
        if why := end():
            return why
        if time.monotonic() > deadline:
            return (
                f"only {taken} of its {nodes} machines were there within {_OTHERS_BEGIN_WITHIN / 60:.0f} minutes; "
                "the cluster needs room for all at the same time"
            )
        time.sleep(_LOOK)
    return ""


def _give_way(folder: Path, why: str) -> JobState:
    """Let a job that has not begun end as one that was preempted, so that it waits again, which is no retry."""
    events = EventWriter(folder / "events.jsonl")
    events.write(Ended(error=why, infrastructure=True, preempted=True))
    events.close()
    return JobState(status=JobStatus.EXITED, exit_code=1, reason=why)


def main() -> None:
    """Read the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("root", type=Path)
    parser.add_argument("job_id")
    parser.add_argument("token", help="the run's token")
    parser.add_argument("controller", type=Path, help="the file that calls of controllers modify")
    parser.add_argument("--runner", default="nasflow.training.runner:run_job_file", help="module:function")
    parser.add_argument("--abandoned-after", type=float, default=float("inf"), help="seconds without a controller")
    parser.add_argument("--memory", type=int, help="bytes available to the job; default: all there is")
    parser.add_argument("--nodes", type=int, default=1, help="machines on which the cluster starts this program")
    options = parser.parse_args()
    limit = memory_limit()
    run = Run(options.root, options.job_id, options.token)
    calls = ControllerCalls(options.controller, options.abandoned_after)
    sys.exit(run_one(run, options.runner, min(limit, options.memory or limit), calls, options.nodes))


if __name__ == "__main__":
    main()
