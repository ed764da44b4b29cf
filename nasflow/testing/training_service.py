"""The contract suite of training services: inherit `TrainingServiceContract` in a test module and pytest runs it.

For a service that runs jobs in the calling process, inherit `InProcessServiceContract`.
"""

import os
import signal
import subprocess
import sys
from abc import abstractmethod
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import psutil
import pytest

from nasflow.config.limits import LimitsConfig
from nasflow.job.events import parse_event
from nasflow.testing.in_process_service import InProcessServiceContract, Open
from nasflow.testing.service_jobs import await_status, epochs, finish, mentions, numbers, running, script, until
from nasflow.training_service.base import JobHandle, JobStatus, TrainingService

__all__ = [
    "InProcessServiceContract",
    "TrainingServiceContract",
    "await_status",
    "epochs",
    "finish",
    "mentions",
    "numbers",
    "running",
    "script",
    "until",
]

_CONTROLLER = """
import sys, time
from pathlib import Path
from nasflow.load_target import load_target
from nasflow.job.spec import JobSpec
service = load_target(sys.argv[1], Path())(Path(sys.argv[2]), 1)
service.prepare()
print(service.submit(JobSpec.model_validate_json(sys.argv[3])).model_dump_json(), flush=True)
time.sleep(300)
"""


class TrainingServiceContract(InProcessServiceContract):
    """Tests every promise of `nasflow.training_service.base.TrainingService`.

    A subclass names a `factory` and implements `lose`. If the service's root or processes are not on this machine, it
    also overrides `release`, `living` and `strays`.
    """

    @abstractmethod
    def lose(self, service: TrainingService, handle: JobHandle) -> None:
        """Make the running job end as LOST, for example by killing its host or worker with SIGKILL."""

    def release(self, root: Path, name: str) -> None:
        """Create the file that a job's step `wait` waits for."""
        (root / name).touch()

    def living(self, pids: Iterable[int]) -> set[int]:
        """Return the pids of processes that still run."""
        return {p.pid for p in psutil.process_iter() if p.pid in set(pids) and running(p)}

    def strays(self, root: Path) -> set[int]:
        """Return all processes with the root in their command line or environment."""
        return {p.pid for p in psutil.process_iter() if p.pid != os.getpid() and mentions(p, str(root)) and running(p)}

    # --- submit, status, slots, list -------------------------------------------------------------------------------

    def test_jobs_run_and_exit(self, two_slots: TrainingService, root: Path) -> None:
        """Jobs go from PENDING to RUNNING to EXITED in the order submitted, at most one per slot at a time."""
        service = two_slots
        assert len(service.slots()) == 2
        handles = [service.submit(script(f"job-{i}", ["wait", "go"])) for i in range(4)]
        for handle in handles[:2]:
            state = await_status(service, handle, JobStatus.RUNNING)
            assert state.slot in service.slots()
        assert [service.status(handle).status for handle in handles[2:]] == [JobStatus.PENDING] * 2
        assert {handle.job_id for handle in service.list()} == {"job-0", "job-1", "job-2", "job-3"}
        self.release(root, "go")
        for handle in handles:
            state = finish(service, handle)
            assert (state.status, state.exit_code, state.signal) == (JobStatus.EXITED, 0, None)
        assert list(service.list()) == []

    def test_submit_needs_no_prepare(self, open_service: Open) -> None:
        """A job that is submitted without `prepare` runs too, and `submit` does not wait for it."""
        service = open_service()
        handle = service.submit(script("first"))
        assert not service.status(handle).status.finished
        assert finish(service, handle).exit_code == 0

    def test_a_job_id_runs_once(self, service: TrainingService, root: Path) -> None:
        """A job submitted again while it waits, while it runs and after it ended has one handle and one run."""
        spec = script("once", ["wait", "go"])
        handle = service.submit(spec)
        assert service.submit(spec) == handle
        await_status(service, handle, JobStatus.RUNNING)
        assert service.submit(spec) == handle
        self.release(root, "go")
        finish(service, handle)
        assert service.submit(spec) == handle
        assert service.status(handle).status is JobStatus.EXITED
        assert len(numbers(service, "jobs/once/runs")) == 1

    # --- how jobs end ----------------------------------------------------------------------------------------------

    @pytest.mark.parametrize(
        ("step", "exit_code", "number"),
        [
            (["exit", 7], 7, None),
            (["signal", int(signal.SIGKILL)], None, int(signal.SIGKILL)),
            (["signal", int(signal.SIGSEGV)], None, int(signal.SIGSEGV)),
        ],
        ids=["exit", "SIGKILL", "SIGSEGV"],
    )
    def test_violent_ends(
        self, service: TrainingService, step: list[Any], exit_code: int | None, number: int | None
    ) -> None:
        """The exit code or signal of a job is reported, and the slot serves the next job."""
        state = finish(service, service.submit(script("bad", ["epoch", 1], step)))
        assert (state.status, state.exit_code, state.signal) == (JobStatus.EXITED, exit_code, number)
        assert epochs(service, JobHandle(service="any", job_id="bad")) == [(1, False)]
        assert finish(service, service.submit(script("next"))).exit_code == 0

    def test_a_job_that_exceeds_a_limit_is_ended(self, service: TrainingService) -> None:
        """A job that exceeds one of its limits is ended with all its processes, although it ignores SIGTERM."""
        spec = script("hangs", ["ignore", int(signal.SIGTERM)], ["spawn", "session"], ["wait", "never"])
        handle = service.submit(spec.model_copy(update={"limits": LimitsConfig(start=1)}))
        state = finish(service, handle)
        assert (state.status, state.limit, state.exit_code) == (JobStatus.EXITED, "start", None)
        assert not self.living([*numbers(service, "jobs/hangs/pids"), *numbers(service, "jobs/hangs/runs")])

    def test_one_trial_can_be_stopped(self, service: TrainingService) -> None:
        """A job finds the mark that asks it to end a trial, also if it has been submitted before."""
        handle = service.submit(script("job", ["wait", "trials/00000/stop"]))
        await_status(service, handle, JobStatus.RUNNING)
        service.stop_trial(0)
        assert finish(service, handle).exit_code == 0

    def test_what_a_job_left_running_ends_with_it(self, service: TrainingService) -> None:
        """Processes that a job started end with it, so the slot is clean for the next job."""
        finish(service, service.submit(script("litter", ["spawn", "session"], ["spawn", "daemon"])))
        pids = numbers(service, "jobs/litter/pids")
        assert len(pids) == 2
        assert not self.living(pids)

    # --- events and files ------------------------------------------------------------------------------------------

    def test_events_by_offset(self, service: TrainingService, root: Path) -> None:
        """Events are whole lines, in order, the same for the same offset, and complete when the job has finished."""
        handle = service.submit(script("talker", ["epoch", 1], ["wait", "go"], ["epoch", 2]))
        until(lambda: epochs(service, handle), "first epoch")
        early, offset = service.events(handle)
        assert service.events(handle, offset) == ([], offset)
        self.release(root, "go")
        finish(service, handle)
        late, end = service.events(handle, offset)
        everything = service.events(handle)
        assert everything == (early + late, end)
        assert [parse_event(line).kind for line in everything[0]] == ["started", "epoch", "epoch", "ended"]
        assert service.events(handle, end) == ([], end)

    # --- cancel ----------------------------------------------------------------------------------------------------

    def test_cancel_ends_the_whole_tree(self, service: TrainingService) -> None:
        """Ends a job that ignores SIGTERM, its child, its grandchild in another session, and its daemon."""
        spec = script(
            "tree",
            ["epoch", 1],
            ["ignore", int(signal.SIGTERM)],
            *(["spawn", how] for how in ("child", "session", "daemon")),
            ["wait", "never"],
        )
        handle = service.submit(spec)
        pids = until(lambda: p if len(p := numbers(service, "jobs/tree/pids")) == 3 else None, "the tree") or []
        pids = pids + numbers(service, "jobs/tree/runs")
        assert self.living(pids) == set(pids)
        service.cancel(handle)
        assert not self.living(pids)
        assert service.status(handle).status is JobStatus.CANCELLED
        assert epochs(service, handle) == [(1, False)]
        assert finish(service, service.submit(script("next"))).exit_code == 0

    def test_cancel_of_jobs_that_do_not_run(self, service: TrainingService, root: Path) -> None:
        """A cancelled waiting job never runs; cancelling a finished or unknown job changes nothing."""
        first = service.submit(script("first", ["wait", "go"]))
        await_status(service, first, JobStatus.RUNNING)
        waiting = service.submit(script("waiting"))
        service.cancel(waiting)
        assert service.status(waiting).status is JobStatus.CANCELLED
        self.release(root, "go")
        assert finish(service, first).exit_code == 0
        service.cancel(first)
        assert service.status(first).status is JobStatus.EXITED
        unknown = JobHandle(service="any", job_id="nobody")
        service.cancel(unknown)
        assert service.status(unknown).status is JobStatus.LOST
        assert numbers(service, "jobs/waiting/runs") == []

    def test_a_cancelled_job_goes_on_when_submitted_again(self, service: TrainingService, root: Path) -> None:
        """It continues from its checkpoints, in the same events file."""
        spec = script("again", ["epoch", 1], ["wait", "go"], ["epoch", 2])
        handle = service.submit(spec)
        until(lambda: epochs(service, handle), "first epoch")
        service.cancel(handle)
        self.release(root, "go")
        assert service.submit(spec) == handle
        assert finish(service, handle).exit_code == 0
        assert epochs(service, handle) == [(1, False), (1, True), (2, False)]

    # --- kills from outside ----------------------------------------------------------------------------------------

    def test_a_job_outlives_its_controller(self, open_service: Open, root: Path) -> None:
        """After SIGKILL of the controller the job continues, and its handle, through JSON, works in the next one."""
        spec = script("survivor", ["epoch", 1], ["wait", "go"], ["epoch", 2])
        program = [sys.executable, "-c", _CONTROLLER, self.factory, str(root), spec.model_dump_json()]
        with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as controller:
            assert controller.stdout is not None
            handle = JobHandle.model_validate_json(controller.stdout.readline())
            service = open_service()
            until(lambda: epochs(service, handle), "first epoch")
            controller.kill()
        service = open_service()
        service.prepare()
        assert service.status(handle).status is JobStatus.RUNNING
        assert list(service.list()) == [handle]
        assert service.submit(spec) == handle
        self.release(root, "go")
        assert finish(service, handle).exit_code == 0
        assert epochs(service, handle) == [(1, False), (2, False)]
        assert len(numbers(service, "jobs/survivor/runs")) == 1

    def test_a_lost_job_goes_on_when_submitted_again(self, two_slots: TrainingService, root: Path) -> None:
        """It is LOST with a reason, its processes end, and it continues from checkpoints. Other jobs are unaffected."""
        service = two_slots
        spec = script("lost", ["epoch", 1], ["spawn", "session"], ["wait", "go"], ["epoch", 2])
        handle = service.submit(spec)
        bystander = service.submit(script("bystander", ["wait", "go"]))
        waiting = [service.submit(script(f"waiting-{i}", ["wait", "go"])) for i in range(3)]
        pids = until(lambda: numbers(service, "jobs/lost/pids"), "grandchild") + numbers(service, "jobs/lost/runs")
        await_status(service, bystander, JobStatus.RUNNING)
        self.lose(service, handle)
        state = await_status(service, handle, JobStatus.LOST)
        assert state.reason
        assert state.exit_code is None
        assert not self.living(pids)
        assert handle not in service.list()
        assert service.submit(spec) == handle
        self.release(root, "go")
        # in the order in which they run: the lost one was submitted last
        assert [finish(service, each).exit_code for each in (bystander, *waiting, handle)] == [0] * 5
        assert epochs(service, handle) == [(1, False), (1, True), (2, False)]
        assert len(numbers(service, "jobs/bystander/runs")) == 1

    def test_cleanup(self, open_service: Open, root: Path) -> None:
        """Ends every process, keeps every result, can be repeated, and jobs can be submitted afterwards."""
        service = open_service()
        done = service.submit(script("done", ["epoch", 1], ["print", "hello"]))
        finish(service, done)
        running = service.submit(script("running", ["spawn", "session"], ["spawn", "daemon"], ["wait", "never"]))
        waiting = service.submit(script("waiting"))
        pids = until(lambda: p if len(p := numbers(service, "jobs/running/pids")) == 2 else None, "grandchildren")
        service.cleanup()
        assert not self.living(pids or [])
        assert self.strays(root) == set()
        assert [service.status(each).status for each in (running, waiting)] == [JobStatus.CANCELLED] * 2
        assert list(service.list()) == []
        service.cleanup()
        assert self.strays(root) == set()
        self.check_what_is_left(service, done)
        assert service.submit(script("waiting")) == waiting
        assert finish(service, waiting).exit_code == 0
