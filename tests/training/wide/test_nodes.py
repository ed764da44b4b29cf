"""A trial on several nodes of a real Slurm: what it learns, and how it ends when a node's processes do."""

import signal
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from nasflow.config.search import Target
from nasflow.config.services.cluster.slurm import SlurmServiceConfig
from nasflow.job.events import Ended, Epoch, Event, Evicted, parse_event
from nasflow.job.spec import JobSpec, job_dir, trial_dir
from nasflow.training.wide import node
from nasflow.training.wide.nodes.meeting import Invitation
from nasflow.training_service.base import JobState, JobStatus
from nasflow.training_service.cluster.slurm import SlurmService
from tests.slurm import slurm
from tests.training.wide.jobs import assert_equal, own_module, run, solo, state, wide

__all__ = ["slurm"]

SLOW = {"space": "slow", "epochs": 6}
Follow = Callable[[SlurmService, JobSpec], None]


def follow(root: Path, spec: JobSpec, meanwhile: Follow = lambda service, spec: None) -> tuple[JobState, list[Event]]:
    """How a job ends on Slurm, and its events."""
    service = SlurmService(SlurmServiceConfig(max_jobs=1, poll_seconds=0.3), root)
    try:
        handle = service.submit(spec)
        meanwhile(service, spec)
        deadline = time.monotonic() + 200
        while not (found := service.status(handle)).status.finished:
            assert time.monotonic() < deadline, service.log_tail(handle)
            time.sleep(0.1)
        print(service.log_tail(handle, 50))  # shown if the test fails
        events = [parse_event(line) for line in service.events(handle)[0]]
        return found, [event for event in events if event is not None]
    finally:
        service.cleanup()


def epochs(events: list[Event]) -> list[int]:
    return [event.epoch for event in events if isinstance(event, Epoch) and not event.replayed]


def programs(root: Path) -> list[psutil.Process]:
    """The programs of a trial's other nodes, each with its ranks."""
    found = []
    for process in psutil.process_iter():
        try:
            command = process.cmdline()
        except psutil.Error:
            continue
        if command[1:4] == ["-P", "-m", "nasflow.training.wide.node"] and command[4].startswith(str(root)):
            found.append(process)
    return [process for process in found if process.ppid() not in {each.pid for each in found}]


def killing(what: str) -> Follow:
    """Kills something of a job on its second node once an epoch is on record."""

    def kill(service: SlurmService, spec: JobSpec) -> None:
        handle = next(iter(service.list()))
        while not any('"kind": "epoch"' in line for line in service.events(handle)[0]):
            time.sleep(0.05)
        (program,) = programs(service._root)
        victim = program if what == "program" else program.children()[-1]
        victim.kill()

    return kill


@pytest.mark.long
@pytest.mark.usefixtures("slurm")
def test_several_nodes_train_as_one_process(tmp_path: Path) -> None:
    spec = wide("fsdp", 2, nodes=2)
    found, events = follow(tmp_path / "nodes", spec)
    assert (found.status, found.exit_code) == (JobStatus.EXITED, 0)
    assert epochs(events) == [1, 2, 3]
    assert_equal(state(tmp_path / "nodes"), solo(spec, tmp_path / "solo"))
    assert not programs(tmp_path)
    assert not list(trial_dir(tmp_path / "nodes", 0).glob(".meeting-*"))


@pytest.mark.long
@pytest.mark.usefixtures("slurm")
@pytest.mark.parametrize("what", ["rank", "program"])
def test_what_is_killed_on_another_node_ends_all_and_another_number_of_nodes_goes_on(what: str, tmp_path: Path) -> None:
    spec, root = wide("fsdp", 1, nodes=2, **SLOW), tmp_path / "nodes"
    found, before = follow(root, spec, killing(what))
    assert not programs(tmp_path)
    if what == "rank":
        assert (found.status, found.signal) == (JobStatus.EXITED, 9), "judged as if the job itself had been killed"
    else:
        ended = before[-1]
        assert isinstance(ended, Ended) and ended.infrastructure
        assert "node 1 of the trial's machines is lost" in str(ended.error)
    code, after = run(wide("ddp", 3, **SLOW), root)
    assert code == 0
    assert epochs([*before, *after]) == [1, 2, 3, 4, 5, 6], "each epoch is reported once"
    assert_equal(state(root), solo(spec, tmp_path / "solo"))


@pytest.mark.long
@pytest.mark.usefixtures("slurm")
def test_what_a_rank_on_another_node_raises_is_blamed_on_the_trial(tmp_path: Path) -> None:
    spec = wide("ddp", 1, nodes=2, **own_module("FailsOnTheLastRank"))
    found, events = follow(tmp_path, spec)
    assert (found.status, found.exit_code) == (JobStatus.EXITED, 0)
    (evicted,) = [event for event in events if isinstance(event, Evicted)]
    assert "ValueError: this node can't go on" in evicted.error


def test_a_job_with_too_few_nodes_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_JOB_NUM_NODES", raising=False)
    code, events = run(wide("ddp", 1, nodes=2), tmp_path)
    ended = events[-1]
    assert code == 1
    assert isinstance(ended, Ended) and ended.infrastructure
    assert "evaluator.parallel.nodes: the job needs 2 nodes of Slurm and its command srun; it has none" in str(
        ended.error
    )


def test_another_node_needs_no_folder_of_code_either(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If all of it is in modules, it starts in the job's root folder, as on the first node."""
    spec = wide("ddp", 1, nodes=2, data={"target": "nasflow.evaluator.data:DigitsRows"})
    spec = spec.model_copy(update={"space": Target(target="nasflow.space.ready:mlp"), "base_dir": tmp_path / "gone"})
    file = job_dir(tmp_path, spec.job_id) / "job.json"
    file.parent.mkdir(parents=True)
    file.write_text(spec.model_dump_json())
    Invitation("first", 1, "key", 0, 0).write(tmp_path / "invitation.json")
    found: list[Path] = []
    monkeypatch.setattr(node, "take_part", lambda job, *_: bool(found.append(job.base_dir)))
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setenv("SLURM_PROCID", "0")
    assert node.main(tmp_path / "invitation.json", file) == 1
    assert found == [tmp_path]


def test_programs_that_do_not_start_are_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = tmp_path / "bin" / "srun"
    command.parent.mkdir()
    command.write_text("#!/bin/sh\nexit 7\n")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", str(command.parent), prepend=":")
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", "2")
    code, events = run(wide("ddp", 1, nodes=2), tmp_path / "root")
    ended = events[-1]
    assert code == 1
    assert isinstance(ended, Ended) and ended.infrastructure
    assert "the trial's other machines did not start: srun ended with 7" in str(ended.error)
