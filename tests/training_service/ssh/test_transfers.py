"""Checkpoints between a host and here: those that take long, those that a job drops meanwhile, and other epochs."""

import os
import shutil
import signal
from pathlib import Path, PurePosixPath

import psutil
import pytest

from nasflow.errors import ServiceError
from nasflow.job.spec import trial_dir
from nasflow.testing.training_service import epochs, finish, script, until
from nasflow.training_service.ssh import agent as agent_module
from nasflow.training_service.ssh import host as ssh_host
from nasflow.training_service.ssh.agent import HostAgent
from nasflow.training_service.ssh.messages import JobNews, Known, Opening, Poll, RemoteFile, Submission
from nasflow.training_service.ssh.mirror import Mirror
from nasflow.training_service.ssh.service import SshService
from tests.sshd import start_sshd
from tests.training_service.ssh.services import SCRIPTED, on_hosts

KNOWN = Known(claim="word", events=0, log=0)


@pytest.fixture
def agent(tmp_path: Path, request: pytest.FixtureRequest):
    slots = getattr(request, "param", 1)
    local = {"slots": slots, "gpu_indices": [], "max_trials_per_gpu": 1, "use_active_gpu": True, "reuse": True}
    agent = HostAgent(tmp_path)
    agent.open(Opening(runner=SCRIPTED, preload=[], idle_timeout=60, abandoned_after=60, **local))
    yield agent
    agent.cleanup()


def news_of(agent: HostAgent, known: Known = KNOWN) -> JobNews:
    news = agent.poll(Poll(jobs={"job": known})).jobs["job"]
    assert news is not None
    return news


def test_what_a_job_drops_is_there_until_the_next_poll(agent: HostAgent, tmp_path: Path) -> None:
    agent.submit(
        Submission(spec=script("job", ["epoch", 1], ["wait", "go"]).model_dump_json(), known=KNOWN, uploads=[])
    )
    news = until(lambda: (found := news_of(agent)).checkpoints and found, "first epoch")
    (file,) = news.checkpoints
    (tmp_path / file.path).unlink()
    assert (tmp_path / file.held).read_text() == "1\n"
    (again,) = news_of(agent, KNOWN.model_copy(update={"events": len(news.events)})).checkpoints or [None]
    assert again is None
    assert not (tmp_path / file.held).exists()


@pytest.mark.parametrize("agent", [2], indirect=True)
def test_while_a_job_is_ending_no_other_is_taken(agent: HostAgent, tmp_path: Path) -> None:
    """It may be the one that replaces a job that was given up while its host was silent."""
    spec = script("job", ["ignore", int(signal.SIGTERM)], ["wait", "never"])
    agent.submit(Submission(spec=spec.model_dump_json(), known=KNOWN, uploads=[]))
    until((tmp_path / "jobs/job/runs").exists, "start of the job")
    assert agent.poll(Poll(jobs={"job": KNOWN})).free == 1
    assert agent.poll(Poll(jobs={})).free == 0
    (pid,) = (tmp_path / "jobs/job/runs").read_text().split()
    assert until(lambda: agent.poll(Poll(jobs={})).free, "end of the job") == 2
    assert not psutil.pid_exists(int(pid))


def test_a_list_that_lacks_a_file_by_now_is_made_again(
    agent: HostAgent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, link = trial_dir(tmp_path, 0), os.link
    folder.mkdir(parents=True)
    (folder / "epoch-1").write_text("1")

    def dropping(source: Path, target: Path) -> None:
        if source.name == "epoch-1" and source.exists():
            (folder / "epoch-2").write_text("2")
            source.unlink()
        link(source, target)

    monkeypatch.setattr(os, "link", dropping)
    assert [file.path for file in agent._hold(folder)] == ["trials/00000/epoch-2"]


def test_without_hard_links_files_are_listed(agent: HostAgent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError("Operation not permitted")

    (folder := trial_dir(tmp_path, 0)).mkdir(parents=True)
    (folder / "epoch-1").write_text("1")
    monkeypatch.setattr(os, "link", refuse)
    assert [(file.path, file.held) for file in agent._hold(folder)] == [("trials/00000/epoch-1", "")]


def test_another_machine_with_the_same_home_leaves_the_workers_alone(
    agent: HostAgent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not see their processes, and would declare their jobs dead. One that was renamed is the same."""
    here = "login1 (4567)"
    monkeypatch.setattr(agent_module, "_this_machine", lambda: here)
    (tmp_path / "machine").write_text("login2 (0123)")
    (record,) = tmp_path.glob("local/workers/*/worker.json")
    left = tmp_path / "incoming-0123"
    left.touch()
    opening = Opening(
        runner=SCRIPTED,
        preload=[],
        idle_timeout=60,
        abandoned_after=60,
        slots=1,
        gpu_indices=[],
        max_trials_per_gpu=1,
        use_active_gpu=True,
        reuse=True,
    )
    with pytest.raises(ServiceError, match=r"leads to several machines: this is .*, and .* on login2 \(0123\); give"):
        HostAgent(tmp_path).open(opening)
    assert record.exists()
    assert left.exists()
    (tmp_path / "machine").write_text("another-name (4567)")
    HostAgent(tmp_path).open(opening)
    assert (tmp_path / "machine").read_text() == here
    (tmp_path / "machine").write_text("login2 (0123)")
    agent.cleanup()
    HostAgent(tmp_path).open(opening)
    assert (tmp_path / "machine").read_text() == here


def test_what_an_interrupted_transfer_has_left_is_removed(tmp_path: Path) -> None:
    (tmp_path / "incoming-0123").write_text("half")
    agent = HostAgent(tmp_path)
    local = {"slots": 1, "gpu_indices": [], "max_trials_per_gpu": 1, "use_active_gpu": True, "reuse": True}
    agent.open(Opening(runner=SCRIPTED, preload=[], idle_timeout=60, abandoned_after=60, **local))
    agent.cleanup()
    assert not list(tmp_path.glob("incoming-*"))


def test_an_agent_hears_of_the_controller_while_files_are_on_their_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both ways: what is sent takes longer than the silence in which an agent ends, and so does what is fetched."""
    monkeypatch.setattr(ssh_host, "_KEPT_AWAKE_EVERY", 0.0)
    calls: list[str] = []
    call = ssh_host.SshHost._call

    def counted(self: ssh_host.SshHost, name: str, *args: object, **kwargs: object) -> str:
        calls.append(name)
        return call(self, name, *args, **kwargs)

    monkeypatch.setattr(ssh_host.SshHost, "_call", counted)
    (tmp_path / "code").mkdir()
    with start_sshd(tmp_path / "host") as there:
        service = SshService(*on_hosts([there], tmp_path), runner=SCRIPTED, preload=())
        try:
            folder = trial_dir(tmp_path / "root", 0)
            folder.mkdir(parents=True)
            (folder / "epoch-1").write_bytes(bytes(1 << 22))
            service.prepare()
            handle = service.submit(script("job", ["epoch", 1], ["epoch", 2]))
            assert finish(service, handle).exit_code == 0
            assert epochs(service, handle) == [(1, True), (2, False)]
            first = calls.index("submit")
            assert calls[:first].count("list") > 10, "while the checkpoint was sent"
            (sent,) = (there.folder / "work" / "studies").glob("*/trials/00000/epoch-1")
            assert sent.read_bytes() == b"1\n", "which the job has written anew"
        finally:
            service.cleanup()


class Copies:
    """In place of an SFTP client: copies below two folders of this machine, and what it was asked for."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def put(self, here: str, there: str, callback: object) -> None:
        self.asked.append(Path(here).name)
        shutil.copy(here, there)

    def getfo(self, there: str, file: object, callback: object) -> None:
        self.asked.append(Path(there).name)
        file.write(Path(there).read_bytes())  # type: ignore[attr-defined]


def epoch_of_ranks(root: Path, number: int, text: str) -> list[str]:
    """What ranks have saved: parts of one size, whatever they hold, and a manifest likewise."""
    folder = trial_dir(root, 0)
    folder.mkdir(parents=True, exist_ok=True)
    names = [f"epoch-{number:04d}.ranks.0.{place}" for place in range(3)]
    for name in names:
        (folder / name).write_text(f"{name} {text}")
    return names


def listed(root: Path) -> list[RemoteFile]:
    return list(HostAgent(root)._files(trial_dir(root, 0)))


@pytest.mark.parametrize("cut_off", [False, True])
def test_an_epoch_that_was_trained_again_is_sent_and_fetched_again(cut_off: bool, tmp_path: Path) -> None:
    """Its files have the same names and sizes as before; only the manifest says that they are others."""
    here, there = tmp_path / "here", tmp_path / "there"
    (here / "ssh").mkdir(parents=True)
    same = epoch_of_ranks(here, 1, "same")
    epoch_of_ranks(there, 1, "same")
    again = epoch_of_ranks(here, 2, "old!")
    epoch_of_ranks(there, 2, "new!")
    mirror, sftp = Mirror(here, PurePosixPath(there), lambda: None), Copies()
    uploads = mirror.upload(sftp, [0], listed(there))
    assert [path for upload in uploads for path in upload.paths] == [
        f"trials/00000/{n}" for n in [*again[1:], again[0]]
    ]
    if cut_off:  # after the first part
        (trial_dir(here, 0) / again[0]).unlink()
        shutil.copy(trial_dir(there, 0) / again[1], trial_dir(here, 0))
    sftp.asked.clear()
    assert mirror.download(sftp, listed(there))
    assert sftp.asked == [*again[1:], again[0]]
    for name in [*same, *again]:
        assert (trial_dir(here, 0) / name).read_text() == (trial_dir(there, 0) / name).read_text()
    sftp.asked.clear()
    assert mirror.download(sftp, listed(there))
    assert mirror.upload(sftp, [0], listed(there)) == []
    assert sftp.asked == []
