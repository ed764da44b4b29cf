"""The program of a job on a cluster: `python -m nasflow.training_service.cluster.node_program ROOT JOB TOKEN`.

It runs one job as a child and writes to a file how that ended. When the cluster ends it (by SIGTERM, or by the end of
the cluster's own processes), or the controller does by a file, it first ends everything that the job started, as the
local service's workers do: clusters track a job's processes by means that these can escape.
"""

import argparse
import os
import signal
import sys
import time
from pathlib import Path

from nasflow.job.spec import job_dir
from nasflow.load_target import load_target
from nasflow.training_service.base import JobState, JobStatus
from nasflow.training_service.cluster.runs import Run
from nasflow.training_service.files.controller_calls import ControllerCalls
from nasflow.training_service.machine.job_process import run_in_child
from nasflow.training_service.machine.memory import memory_limit
from nasflow.training_service.machine.processes import adopt_orphans, die_with_parent

_LOOK = 0.25  # seconds between two checks whether the controller has asked the run to end


class _EndReason:
    """Collects why the job must end; called, it returns the reason, or an empty string."""

    def __init__(self, run: Run, calls: ControllerCalls):
        self._run, self._calls, self._looked, self.why = run, calls, time.monotonic(), ""
        self.signalled = False

    def by_signal(self, number: int, _: object) -> None:
        """Signal handler."""
        self.signalled = self.signalled or not self.why
        self.why = self.why or f"its program on the node was ended by {signal.Signals(number).name}"

    def __call__(self) -> str:
        if not self.why and time.monotonic() - self._looked >= _LOOK:
            self._looked = time.monotonic()
            self.why = self._calls.missing() if self._run.is_current() else "the controller asked it to end"
        return self.why


def run_one(run: Run, runner: str, memory_share: int, calls: ControllerCalls) -> None:
    """Run a job to its end and record the outcome; do nothing if another process has begun the run."""
    end = _EndReason(run, calls)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end.by_signal)
    die_with_parent(os.getppid(), signal.SIGTERM)
    adopt_orphans()
    if not run.begin():
        sys.stderr.write(f"run {run.token} of job {run.job_id} has begun elsewhere\n")
        return
    if not run.is_current():  # after `begin`: a controller tells it to end, and then checks whether it has begun
        run.end(JobState(status=JobStatus.LOST, reason="it was asked to end before it began"))
        return
    os.chdir(run.root)
    folder = job_dir(run.root, run.job_id)
    state = run_in_child(
        folder / "job.json",
        lambda job: int(load_target(runner, run.root)(job)),
        end,
        memory_share,
        by_signal=lambda: end.signalled,
    )
    # some clusters also signal the job's process
    if end.why and state.signal in (signal.SIGTERM, signal.SIGKILL):
        state = JobState(status=JobStatus.LOST, reason=end.why)
    run.end(state)


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
    options = parser.parse_args()
    limit = memory_limit()
    run = Run(options.root, options.job_id, options.token)
    calls = ControllerCalls(options.controller, options.abandoned_after)
    run_one(run, options.runner, min(limit, options.memory or limit), calls)


if __name__ == "__main__":
    main()
