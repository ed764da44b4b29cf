"""A run whose cluster starts its program on several machines: which of them does what, and how it ends."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from nasflow.attempt.verdict import judge
from nasflow.job.events import Ended, Epoch, Event, Evicted, parse_event, read_lines
from nasflow.job.node_jobs import divide
from nasflow.job.spec import INVITATION, JobSpec, job_dir
from nasflow.study.records import FailureKind
from nasflow.testing.service_jobs import until
from nasflow.training_service.base import JobState, JobStatus
from nasflow.training_service.cluster import node_program
from nasflow.training_service.cluster.runs import ClusterRecords, Run
from nasflow.training_service.files.shared_root import import_path
from tests.training.wide.jobs import assert_equal, own_module, solo, state, wide

_ENDLESS = 10**6
Programs = list[subprocess.Popen[bytes]]


class Cluster:
    """Starts the program of a run on machines that share the root."""

    def __init__(self, root: Path, spec: JobSpec):
        self.root, self.spec = root, spec
        self.records = ClusterRecords(root, "test")
        with self.records.service_lock():
            self.records.enqueue(spec)
            assert list(self.records.take(["test-0"])) == [(spec.job_id, "test-0")]
            self.run: Run = self.records.new_run(spec.job_id)
        divide(root, self.run.spec())

    @contextmanager
    def programs(self, count: int) -> Iterator[Programs]:
        program = [sys.executable, "-P", "-m", "nasflow.training_service.cluster.node_program", *self.run.arguments]
        environment = {**os.environ, "PYTHONPATH": import_path(), "OMP_NUM_THREADS": "1"}
        command = [*program, str(self.records.controller), "--nodes", str(self.spec.nodes)]
        with (self.root / "log").open("wb") as log:
            started = [subprocess.Popen(command, env=environment, cwd=self.root, stderr=log) for _ in range(count)]
        try:
            yield started
        finally:
            for each in started:
                each.kill()
                each.wait()

    def ended(self) -> JobState:
        found = self.run.ended()
        assert found is not None
        return found

    def events(self) -> list[Event]:
        lines, _ = read_lines(job_dir(self.root, self.spec.job_id) / "events.jsonl", 0)
        return [event for line in lines if (event := parse_event(line)) is not None]

    def epochs(self) -> list[int]:
        return [event.epoch for event in self.events() if isinstance(event, Epoch)]

    def first(self, programs: Programs) -> subprocess.Popen[bytes]:
        """The one that runs the job: the other has the folder of a node job."""
        (found,) = [each for each in programs if not _works_for(each, f"{self.spec.job_id}-node-1")]
        return found


def _works_for(program: subprocess.Popen[bytes], job_id: str) -> bool:
    (job,) = psutil.Process(program.pid).children()
    return any(f"/{job_id}/" in file.path for file in job.open_files())


def codes(programs: Programs) -> list[int]:
    return [each.wait(120) for each in programs]


@pytest.mark.long
def test_one_runs_the_job_and_the_other_takes_part(tmp_path: Path) -> None:
    """A third one, as of a pod that was started again, has nothing to do; nor has the invitation of an earlier run."""
    spec = wide("fsdp", 1, nodes=2)
    cluster = Cluster(tmp_path / "root", spec)
    stale = '{"host": "127.0.0.1", "port": 9, "key": "00", "trial": 0, "reported": 0}'
    (job_dir(cluster.root, spec.job_id) / INVITATION).write_text(stale)
    with cluster.programs(3) as programs:
        assert codes(programs) == [0, 0, 0]
    assert (cluster.ended().status, cluster.ended().exit_code) == (JobStatus.EXITED, 0)
    assert cluster.epochs() == [1, 2, 3]
    assert_equal(state(cluster.root), solo(spec, tmp_path / "solo"))


@pytest.mark.long
def test_an_error_on_the_other_machine_is_the_trials(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, wide("ddp", 1, nodes=2, **own_module("FailsOnTheLastRank")))
    with cluster.programs(2) as programs:
        assert codes(programs) == [0, 0]
    assert cluster.ended().exit_code == 0, "the job itself has not failed"
    (evicted,) = [event for event in cluster.events() if isinstance(event, Evicted)]
    assert "ValueError: this node can't go on" in evicted.error


@pytest.mark.long
def test_the_other_does_not_outlive_a_machine_without_a_last_word(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, wide("ddp", 1, nodes=2, epochs=_ENDLESS))
    with cluster.programs(2) as programs:
        until(cluster.epochs, "an epoch", 120)
        first = cluster.first(programs)
        first.kill()
        (other,) = [each for each in programs if each is not first]
        assert other.wait(120) == 1
    assert cluster.run.ended() is None
    reason = "machine 1 of the job takes part no more: the job's first machine is gone, or can't be reached any more"
    assert reason in (tmp_path / "log").read_text()


def test_it_ends_when_others_do_not_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_program, "_OTHERS_BEGIN_WITHIN", 0.3)
    run = Cluster(tmp_path, wide("ddp", 1, nodes=3)).run
    assert [run.take_place(3), run.take_place(3)] == [0, 1]
    began = time.monotonic()
    reason = node_program._await_others(run, 3, lambda: "")
    assert reason.startswith("only 2 of its 3 machines were there within ")
    assert time.monotonic() - began < 5
    assert node_program._await_others(run, 3, lambda: "the controller asked it to end").startswith("the controller")
    assert [run.take_place(3), run.take_place(3)] == [2, None]
    assert node_program._await_others(run, 3, lambda: "") == ""


@pytest.mark.long
def test_another_machine_is_taken_back(tmp_path: Path) -> None:
    """The job has the time to save itself, as if its own machine were; its next start is no retry."""
    spec = wide("ddp", 1, nodes=2, epochs=_ENDLESS)
    spec = spec.model_copy(update={"checkpoint": spec.checkpoint.model_copy(update={"on_preempt": True})})
    cluster = Cluster(tmp_path, spec)
    with cluster.programs(2) as programs:
        until(cluster.epochs, "an epoch", 120)
        first = cluster.first(programs)
        (other,) = [each for each in programs if each is not first]
        other.terminate()
        assert (first.wait(60), other.wait(60)) == (0, 1)
    ended = cluster.events()[-1]
    assert isinstance(ended, Ended) and ended.infrastructure and ended.preempted
    assert (cluster.ended().status, cluster.ended().exit_code) == (JobStatus.EXITED, 1)


def test_a_run_without_room_gives_way_and_is_no_try(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, wide("ddp", 1, nodes=2))
    state = node_program._give_way(job_dir(tmp_path, "job"), "only 1 of its 2 machines was there")
    (ended,) = cluster.events()
    assert isinstance(ended, Ended) and ended.preempted
    verdict = judge(state, ended)
    assert verdict.failure is FailureKind.INFRASTRUCTURE
    assert verdict.error == "only 1 of its 2 machines was there"


def test_a_controller_ends_one_that_waits_for_others(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, wide("ddp", 1, nodes=2))
    with cluster.programs(1) as programs:
        until(cluster.run.began, "begin of the run", 60)
        with cluster.records.service_lock():
            cluster.records.revoke(cluster.run)
        assert codes(programs) == [0]
    assert (cluster.ended().status, cluster.ended().reason) == (JobStatus.LOST, "the controller asked it to end")
    assert cluster.epochs() == []
