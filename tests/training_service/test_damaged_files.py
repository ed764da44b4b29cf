"""Small files that a power cut left damaged, and leftovers of other programs: each costs one line, and all goes on."""

import logging
import os
from pathlib import Path

import pytest

from nasflow.config.job_secrets import NO_SECRETS
from nasflow.config.services.debug import DebugServiceConfig
from nasflow.config.services.local import LocalServiceConfig
from nasflow.config.services.ssh import SshHostConfig, SshServiceConfig
from nasflow.job.events import Ended, parse_event, read_lines
from nasflow.job.spec import job_dir, trial_dir
from nasflow.system.process_id import process_id
from nasflow.system.small_files import write_aside
from nasflow.testing.training_service import await_status, finish, numbers, script, until
from nasflow.training.runner import run_job_file
from nasflow.training_service.base import JobHandle, JobState, JobStatus, TrainingService
from nasflow.training_service.cluster.runs import ClusterRecords, run_dir
from nasflow.training_service.debug import DebugService
from nasflow.training_service.local.service import LocalService
from nasflow.training_service.local.state import LocalState
from nasflow.training_service.ssh.agent import HostAgent
from nasflow.training_service.ssh.host import SshHost
from nasflow.training_service.ssh.messages import Known, Opening, Poll, RemoteFile, Submission
from nasflow.training_service.ssh.mirror import Mirror
from nasflow.training_service.ssh.records import Offer, SshRecords
from nasflow.training_service.ssh.setup import Supplies

SCRIPTED = "nasflow.testing.scripted_job:run_job_file"
DAMAGE = {
    "empty": b"",
    "cut": b'{"status": "exi',
    "zeros": bytes(40),
    "other values": b'{"status": "gone"}',
    "no text": b"\xff\xfe",
}
damaged = pytest.mark.parametrize("content", DAMAGE.values(), ids=DAMAGE)


def debug(root: Path) -> DebugService:
    return DebugService(DebugServiceConfig(), root, runner=SCRIPTED)


@pytest.fixture
def local(tmp_path: Path):
    service = LocalService(LocalServiceConfig(slots=1, idle_timeout=60), tmp_path / "root", SCRIPTED, preload=())
    yield service
    service.cleanup()


def again(service: TrainingService, handle: JobHandle) -> None:
    """A job without an outcome is lost, and can be submitted and runs again."""
    assert service.status(handle).status is JobStatus.LOST
    job = script(handle.job_id, ["epoch", 1])
    assert finish(service, service.submit(job)).exit_code == 0


@damaged
def test_an_outcome(tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture) -> None:
    service = debug(tmp_path)
    handle = service.submit(script("job", ["epoch", 1]))
    finish(service, handle)
    outcome = job_dir(tmp_path, "job") / "exit.json"
    outcome.write_bytes(content)
    with caplog.at_level(logging.WARNING):
        again(service, handle)
        service.cleanup()
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "exit.json is damaged and is now exit.json.damaged" in caplog.text
    assert outcome.with_name("exit.json.damaged").read_bytes() == content


def test_an_outcome_of_the_local_service(local: LocalService, tmp_path: Path) -> None:
    handle = local.submit(script("job", ["epoch", 1]))
    finish(local, handle)
    (job_dir(tmp_path / "root", "job") / "exit.json").write_bytes(b"")
    assert local.list() == []
    again(local, handle)


@pytest.mark.parametrize("first", ["status", "cleanup"])
def test_the_record_of_a_worker(local: LocalService, first: str, caplog: pytest.LogCaptureFixture) -> None:
    """Its job may still run, and is ended before it can run twice."""
    handle = local.submit(script("job", ["epoch", 1], ["spawn", "session"], ["wait", "never"]))
    until(lambda: numbers(local, "jobs/job/pids"), "process of the job")
    pids = numbers(local, "jobs/job/pids") + numbers(local, "jobs/job/runs")
    state = LocalState(local.fetch("."))
    with state.lock():
        (state.dir / "workers" / "cpu-0" / "worker.json").write_bytes(b"")
    with caplog.at_level(logging.WARNING):
        local.status(handle) if first == "status" else local.cleanup()
        until(lambda: not any(process_id(pid) for pid in pids), "end of the job's processes")  # they have been killed
        assert local.status(handle).reason == "the record of the worker of slot cpu-0 is damaged"
        again(local, handle)
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_leftovers_in_the_queue(local: LocalService, tmp_path: Path) -> None:
    first = local.submit(script("first", ["wait", "go"]))
    await_status(local, first, JobStatus.RUNNING)
    folders = [tmp_path / "root" / "local" / part for part in ("queue", "workers", "workers/cpu-0/claim", "held")]
    for folder in folders:
        folder.mkdir(exist_ok=True)
        (folder / ".nfs0000000000a1b2c3").write_bytes(b"\xff")
    (folders[0] / "000000009.second.new").touch()
    second = local.submit(script("second", ["epoch", 1]))
    assert [handle.job_id for handle in local.list()] == ["first", "second"]
    assert local.status(second) == JobState(status=JobStatus.PENDING)
    (tmp_path / "root" / "go").touch()
    assert finish(local, second).exit_code == 0
    state = LocalState(tmp_path / "root")
    until(lambda: not state.news("cpu-0"), "rest of the worker, which is not kept busy by them")
    assert local.list() == []


def test_leftovers_among_claims_of_a_cluster_and_of_hosts(tmp_path: Path) -> None:
    cluster, hosts = ClusterRecords(tmp_path, "slurm"), SshRecords(tmp_path)
    takes = {
        cluster: lambda: next((job for job, _ in cluster.take(["one"])), None),
        hosts: lambda: next(iter(hosts.take("one", 1, "localhost")), None),
    }
    for records, take in takes.items():
        with records.lock():
            records.enqueue(script("job"))
            assert take() == "job"
            for folder in (records.dir / "workers", records.claims("one"), records.dir / "queue"):
                (folder / ".nfs0000000000a1b2c3").touch()
            assert take() is None
            assert (records.holders(), records.claimed("one")) == (["one"], ["job"])


def test_leftovers_among_checkpoints(tmp_path: Path) -> None:
    folder = trial_dir(tmp_path, 3)
    folder.mkdir(parents=True)
    for name in (".nfs0000000000a1b2c3", "epoch-0001.safetensors", "epoch-0002.safetensors"):
        (folder / name).touch()
    newest = f"trials/00003/{'epoch-0002.safetensors'}"
    Mirror(tmp_path, tmp_path, lambda: None).drop_old([RemoteFile(path=newest, size=0, inode=1)])
    assert sorted(path.name for path in folder.iterdir()) == [".nfs0000000000a1b2c3", "epoch-0002.safetensors"]


@damaged
def test_the_end_of_a_run_on_a_cluster(tmp_path: Path, content: bytes) -> None:
    records = ClusterRecords(tmp_path, "slurm")
    with records.lock():
        records.enqueue(script("job"))
        run = records.new_run("job")
        (run_dir(tmp_path, "job") / "current").write_bytes(b"\xff")
        run.file("exit.json").write_bytes(content)
        assert run.ended() is None
        assert not run.is_current()


@pytest.mark.parametrize("content", [b"", bytes(8), b"\xff\xfe"], ids=["empty", "zeros", "bytes"])
def test_the_id_of_the_folders_on_hosts(tmp_path: Path, content: bytes) -> None:
    records = SshRecords(tmp_path)
    with records.lock():
        first = records.study_id()
        assert records.study_id() == first
        (records.dir / "id").write_bytes(content)
        second = records.study_id()
        assert len(second) == len(first)
        assert records.study_id() == second


def test_the_spec_of_a_job_on_a_host(tmp_path: Path) -> None:
    agent = HostAgent(tmp_path)
    local = {"slots": 1, "gpu_indices": [], "max_trials_per_gpu": 1, "use_active_gpu": True, "reuse": True}
    agent.open(Opening(runner=SCRIPTED, preload=[], idle_timeout=60, abandoned_after=60, **local))
    try:
        spec = script("job", ["epoch", 1]).model_dump_json()
        known = Known(claim="word", events=0, log=0)
        agent.submit(Submission(spec=spec, known=known, uploads=[]))
        poll = Poll(jobs={"job": known})
        until(lambda: (news := agent.poll(poll).jobs["job"]) and news.state.status.finished, "end of the job")
        (trial_dir(tmp_path, 0) / ".nfs0000000000a1b2c3").touch()
        news = agent.poll(poll).jobs["job"]
        assert news is not None
        assert [file.path for file in news.checkpoints] == ["trials/00000/epoch-1"]
        (job_dir(tmp_path, "job") / "job.json").write_bytes(b"")
        news = agent.poll(poll).jobs["job"]
        assert news is not None
        assert (news.state.exit_code, news.checkpoints) == (0, [])
    finally:
        agent.cleanup()


def test_the_spec_of_a_job_for_a_host(tmp_path: Path) -> None:
    """Instead of failing again at each look, the job is lost, and so submitted again."""
    config = SshServiceConfig(hosts=[SshHostConfig(host="nowhere")])
    records = SshRecords(tmp_path)
    supplies = Supplies(config, tmp_path, tmp_path, str)
    host = SshHost(config, config.hosts[0], records, supplies, runner="", preload=[], secrets=NO_SECRETS)
    with records.lock():
        records.enqueue(script("job"))
        assert records.take(host.name, 1, Offer("localhost", on_gpus=False)) == ["job"]
        known = records.known(host.name)["job"]
    (job_dir(tmp_path, "job") / "job.json").write_bytes(b"")
    host._submit("job", known)
    with records.lock():
        lost = records.outcome("job")
        assert (lost and lost.status, records.claimed(host.name)) == (JobStatus.LOST, [])


@pytest.mark.parametrize("kind", ["empty", "cut", "zeros", "no text"])
def test_the_spec_of_a_job_is_nobodys_fault(tmp_path: Path, kind: str) -> None:
    folder = job_dir(tmp_path, "job")
    folder.mkdir(parents=True)
    (folder / "job.json").write_bytes(DAMAGE[kind])
    assert run_job_file(folder / "job.json") == 1
    [line], _ = read_lines(folder / "events.jsonl")
    ended = parse_event(line)
    assert isinstance(ended, Ended)
    assert ended.infrastructure
    assert ended.error is not None
    assert "job.json is damaged" in ended.error


def test_small_files_are_synced_before_they_have_their_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[bytes] = []
    replace, fsync = Path.replace, os.fsync

    def watched_replace(self: Path, target: Path) -> Path:
        assert synced == [self.read_bytes()]
        return replace(self, target)

    def watched_fsync(descriptor: int) -> None:
        fsync(descriptor)
        synced.append(Path(f"/proc/self/fd/{descriptor}").read_bytes())

    monkeypatch.setattr(Path, "replace", watched_replace)
    monkeypatch.setattr(os, "fsync", watched_fsync)
    write_aside(tmp_path / "job.json", '{"text": "é"}')
    assert (tmp_path / "job.json").read_text(encoding="utf-8") == '{"text": "é"}'
