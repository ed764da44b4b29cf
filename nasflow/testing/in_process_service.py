"""The part of the training service contract that also holds for services that run jobs in the calling process."""

import json
from abc import ABC
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import pytest

from nasflow.errors import ServiceError
from nasflow.job.events import parse_event
from nasflow.load_target import load_target
from nasflow.testing.service_jobs import epochs, finish, numbers, script
from nasflow.training_service.base import JobHandle, JobState, JobStatus, TrainingService

Open = Callable[..., TrainingService]


class InProcessServiceContract(ABC):
    """Tests the promises of `nasflow.training_service.base.TrainingService` that can be seen from one process.

    A subclass names a `factory`.
    """

    factory: ClassVar[str]
    """`module:function` or `file.py:function`, called with (root: Path, slots: int); its service runs
    `nasflow.testing.scripted_job:run_job_file` in place of the real runner."""

    @pytest.fixture
    def root(self, tmp_path: Path) -> Path:
        """The root folder of the service under test."""
        return tmp_path / "root"

    @pytest.fixture
    def open_service(self, root: Path) -> Iterator[Open]:
        """A function that opens services on the root, with one slot by default; their jobs end with the test."""
        make = load_target(self.factory, Path())
        yield lambda slots=1: make(root, slots)
        make(root, 1).cleanup()

    @pytest.fixture
    def service(self, open_service: Open) -> TrainingService:
        """A service with one slot, ready for jobs."""
        service = open_service()
        service.validate()
        service.prepare()
        return service

    @pytest.fixture
    def two_slots(self, open_service: Open) -> TrainingService:
        """A service with two slots, ready for jobs."""
        service = open_service(slots=2)
        service.prepare()
        return service

    # --- submit, status, slots, list -------------------------------------------------------------------------------

    def test_jobs_run_and_exit(self, two_slots: TrainingService, root: Path) -> None:
        """With more jobs than slots, each runs in one of the slots, and none is left."""
        service = two_slots
        handles = [service.submit(script(f"job-{i}", ["epoch", 1])) for i in range(4)]
        for handle in handles:
            state = finish(service, handle)
            assert (state.status, state.exit_code, state.signal) == (JobStatus.EXITED, 0, None)
            assert state.slot in service.slots()
        assert list(service.list()) == []

    def test_submit_needs_no_prepare(self, open_service: Open) -> None:
        """A job that is submitted without `prepare` runs too."""
        service = open_service()
        assert finish(service, service.submit(script("first"))).exit_code == 0

    def test_a_job_id_runs_once(self, service: TrainingService, root: Path) -> None:
        """A job submitted twice, and again after it ended, has one handle and one run."""
        spec = script("once")
        handle = service.submit(spec)
        assert service.submit(spec) == handle
        finish(service, handle)
        assert service.submit(spec) == handle
        assert service.status(handle).status is JobStatus.EXITED
        assert len(numbers(service, "jobs/once/runs")) == 1

    def test_many_threads_at_once(self, two_slots: TrainingService) -> None:
        """Eight threads submit the same twelve jobs: each runs once, and all threads see the same outcome."""
        service = two_slots
        specs = [script(f"job-{i}", ["epoch", 1]) for i in range(12)]

        def all_of_them(_: int) -> list[JobState]:
            handles = [service.submit(spec) for spec in specs]
            return [finish(service, handle) for handle in handles]

        with ThreadPoolExecutor(8) as pool:
            ends = list(pool.map(all_of_them, range(8)))
        assert all(end == ends[0] for end in ends)
        assert {state.status for state in ends[0]} == {JobStatus.EXITED}
        assert [len(numbers(service, f"jobs/job-{i}/runs")) for i in range(12)] == [1] * 12

    def test_an_unknown_job_is_lost(self, service: TrainingService) -> None:
        """An unknown job is LOST and has neither events nor a log."""
        handle = JobHandle(service="any", job_id="nobody")
        assert service.status(handle).status is JobStatus.LOST
        assert service.events(handle) == ([], 0)
        assert service.log_tail(handle) == ""

    def test_a_handle_serves_another_service_on_the_root(self, open_service: Open) -> None:
        """A handle works there after a round trip through JSON; a finished job is known and does not run again."""
        spec = script("known", ["epoch", 1])
        first = open_service()
        state = finish(first, first.submit(spec))
        second = open_service()
        handle = JobHandle.model_validate_json(first.submit(spec).model_dump_json())
        assert second.status(handle) == state
        assert second.events(handle) == first.events(handle)
        assert second.submit(spec) == handle
        assert second.status(handle) == state
        assert len(numbers(second, "jobs/known/runs")) == 1

    # --- how jobs end ----------------------------------------------------------------------------------------------

    @pytest.mark.parametrize(
        ("step", "exit_code"), [(["return", 3], 3), (["raise", "boom"], 1)], ids=["return", "raise"]
    )
    def test_exit_codes(self, service: TrainingService, step: list[Any], exit_code: int) -> None:
        """The exit code is reported, and the slot serves the next job."""
        handle = service.submit(script("bad", ["epoch", 1], step))
        state = finish(service, handle)
        assert (state.status, state.exit_code, state.signal) == (JobStatus.EXITED, exit_code, None)
        assert epochs(service, handle) == [(1, False)]
        assert finish(service, service.submit(script("next"))).exit_code == 0

    def test_log_tail(self, service: TrainingService) -> None:
        """The log holds standard output and tracebacks, its last lines can be read, and `reason` is the last one."""
        handle = service.submit(script("loud", ["print", "one"], ["print", "two"], ["raise", "boom"]))
        state = finish(service, handle)
        assert service.log_tail(handle, 100).splitlines()[:2] == ["one", "two"]
        assert service.log_tail(handle, 1) == "RuntimeError: boom" == state.reason

    # --- events and files ------------------------------------------------------------------------------------------

    def test_events_by_offset(self, service: TrainingService, root: Path) -> None:
        """Events are whole lines, in order, the same for the same offset, and complete when the job has finished."""
        handle = service.submit(script("talker", ["epoch", 1], ["epoch", 2]))
        finish(service, handle)
        lines, end = service.events(handle)
        assert [parse_event(line).kind for line in lines] == ["started", "epoch", "epoch", "ended"]
        offset = sum(len(line.encode()) + 1 for line in lines[:2])
        assert service.events(handle, offset) == (lines[2:], end)
        assert service.events(handle, end) == ([], end)

    def test_fetch(self, service: TrainingService) -> None:
        """Fetches a file, a folder, a missing path, and paths that lead out of the root."""
        finish(service, service.submit(script("files", ["epoch", 1], ["epoch", 2])))
        assert json.loads(service.fetch("jobs/files/job.json").read_text())["job_id"] == "files"
        checkpoints = service.fetch("trials/00000")
        assert {path.name: path.read_text() for path in checkpoints.iterdir()} == {"epoch-1": "1\n", "epoch-2": "2\n"}
        with pytest.raises(FileNotFoundError):
            service.fetch("trials/00001")
        for path in ("../secret", "/etc/passwd", "jobs/../../secret"):
            with pytest.raises(ServiceError):
                service.fetch(path)

    # --- cancel and cleanup ----------------------------------------------------------------------------------------

    def test_cancel_of_jobs_that_do_not_run(self, service: TrainingService, root: Path) -> None:
        """Cancelling a finished or unknown job changes nothing."""
        done = service.submit(script("done"))
        finish(service, done)
        service.cancel(done)
        assert service.status(done).status is JobStatus.EXITED
        unknown = JobHandle(service="any", job_id="nobody")
        service.cancel(unknown)
        assert service.status(unknown).status is JobStatus.LOST

    def test_cleanup(self, open_service: Open, root: Path) -> None:
        """Leaves nothing pending, keeps every result, can be repeated, and jobs can be submitted afterwards."""
        service = open_service()
        done = service.submit(script("done", ["epoch", 1], ["print", "hello"]))
        finish(service, done)
        service.cleanup()
        service.cleanup()
        assert list(service.list()) == []
        self.check_what_is_left(service, done)
        assert finish(service, service.submit(script("later"))).exit_code == 0

    def check_what_is_left(self, service: TrainingService, done: JobHandle) -> None:
        """Check that a clean-up kept the state, events, log and checkpoint of a job (one epoch, printed hello)."""
        assert service.status(done).status is JobStatus.EXITED
        assert epochs(service, done) == [(1, False)]
        assert service.log_tail(done) == "hello"
        assert service.fetch("trials/00000/epoch-1").read_text() == "1\n"
