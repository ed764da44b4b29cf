"""The SSH service keeps the contract on a real sshd, and its own promises on several."""

import json
import math
import os
import re
import subprocess
import time
from contextvars import ContextVar
from ctypes.util import find_library
from pathlib import Path

import psutil
import pytest

from nasflow.config.services.ssh import SshServiceConfig
from nasflow.errors import ServiceError
from nasflow.testing.training_service import (
    TrainingServiceContract,
    await_status,
    epochs,
    finish,
    mentions,
    numbers,
    running,
    script,
    until,
)
from nasflow.training_service.base import JobStatus
from nasflow.training_service.ssh import records
from nasflow.training_service.ssh.connect import refusals
from nasflow.training_service.ssh.connect.refusals import Refusals
from nasflow.training_service.ssh.records import Offer
from nasflow.training_service.ssh.service import SshService
from tests.gpu_stand_ins import NvidiaSmi
from tests.sshd import ssh_section, start_sshd

SEARCH = ContextVar("SEARCH", default="none")


@pytest.fixture
def host(tmp_path):
    with start_sshd(tmp_path / "host") as sshd:
        yield sshd


@pytest.mark.long
class TestSshService(TrainingServiceContract):
    factory = f"{Path(__file__).with_name('services.py')}:make"

    @pytest.fixture
    def root(self, tmp_path, host):
        (tmp_path / "code").mkdir()
        config = {"hosts": [host.config_host()], "known_hosts": str(host.known_hosts), "ssh_config": "/dev/null"}
        (tmp_path / "service.json").write_text(json.dumps(config))
        return tmp_path / "root"

    def release(self, root, name):
        (folder,) = (root.parent / "host" / "work" / "studies").iterdir()
        (folder / name).touch()

    def strays(self, root):
        places = (str(root), str(root.parent / "host" / "work"))
        others = (p for p in psutil.process_iter() if p.pid != os.getpid())
        return {p.pid for p in others if any(mentions(p, place) for place in places) and running(p)}

    def lose(self, service, handle):
        (pid,) = numbers(service, f"jobs/{handle.job_id}/runs")
        psutil.Process(pid).parent().kill()


@pytest.fixture
def two_hosts(tmp_path):
    (tmp_path / "code").mkdir()
    with start_sshd(tmp_path / "a") as first, start_sshd(tmp_path / "b") as second:
        yield first, second


@pytest.fixture
def open_service(tmp_path):
    """Makes services on one root and these hosts."""
    made = []

    def make(hosts, options=None, **service) -> SshService:
        section = ssh_section(hosts, tmp_path / "known_hosts", **service)
        section["hosts"] = [host | (options or {"slots": 1}) for host in section["hosts"]]
        made.append(
            SshService(
                SshServiceConfig.model_validate(section),
                tmp_path / "root",
                tmp_path / "code",
                runner="nasflow.testing.scripted_job:run_job_file",
                preload=(),
            )
        )
        return made[-1]

    yield make
    for service in made:
        service.cleanup()


def root_on(host) -> Path:
    (folder,) = (host.folder / "work" / "studies").iterdir()
    return folder


def test_a_job_whose_host_is_lost_goes_on_elsewhere_from_its_checkpoints(two_hosts, open_service):
    """And the host, heard of again, ends what it should no longer run."""
    service = open_service(two_hosts, lost_after=1, connect_timeout=1)
    service.validate()
    service.prepare()
    spec = script("job", ["epoch", 1], ["wait", "go"], ["epoch", 2])
    handle = service.submit(spec)
    until(lambda: epochs(service, handle), "first epoch")
    lost, other = sorted(two_hosts, key=lambda host: str(host.port) not in service.status(handle).slot)
    (pid,) = numbers(service, "jobs/job/runs")
    lost.pause()
    state = await_status(service, handle, JobStatus.LOST)
    assert re.fullmatch(rf"host 127.0.0.1:{lost.port} has been silent for \d+ s: .+", state.reason)
    service.submit(spec)
    until((root_on(other) / "jobs/job/runs").exists, "start on the other host")
    (root_on(other) / "go").touch()
    assert finish(service, handle).exit_code == 0
    assert epochs(service, handle) == [(1, False), (1, True), (2, False)]
    assert (root_on(lost) / "jobs/job/runs").read_text().split() == [str(pid)]
    assert psutil.pid_exists(pid)
    lost.resume()
    until(lambda: not psutil.pid_exists(pid), "end of the job that went on elsewhere")


def test_a_host_that_answers_but_always_fails_gives_its_jobs_up(tmp_path, two_hosts, open_service):
    """Here a folder is in the way of a checkpoint. It then takes no jobs for a while, so the other host gets them."""
    service = open_service(two_hosts, lost_after=2)
    service.prepare()
    other = service.submit(script("other", ["epoch", 1], ["wait", "go"]))
    until(lambda: epochs(service, other), "first epoch")
    good, bad = sorted(two_hosts, key=lambda host: str(host.port) not in service.status(other).slot)
    (root_on(bad) / "trials/00000/epoch-1/folder").mkdir(parents=True)
    spec = script("job", ["epoch", 1], ["epoch", 2])
    handle = service.submit(spec)
    (root_on(good) / "go").touch()
    state = await_status(service, handle, JobStatus.LOST)
    assert re.fullmatch(
        rf"host 127.0.0.1:{bad.port} answers, but has failed for \d+ s: .*: \[Errno 21\] Is a directory: .*epoch-1'",
        state.reason,
    )
    service.submit(spec)
    assert finish(service, handle).exit_code == 0
    assert str(good.port) in service.status(handle).slot
    assert epochs(service, handle) == [(1, True), (2, False)]


def test_jobs_go_on_while_their_host_is_silent(two_hosts, open_service):
    """What they told meanwhile comes when it is heard again."""
    host, _ = two_hosts
    service = open_service([host], connect_timeout=1)
    service.prepare()
    handle = service.submit(script("job", ["epoch", 1], ["wait", "go"], ["epoch", 2], ["epoch", 3]))
    until(lambda: epochs(service, handle), "first epoch")
    host.pause()
    (root_on(host) / "go").touch()
    until((root_on(host) / "trials/00000/epoch-3").exists, "third epoch")
    assert service.status(handle).status is JobStatus.RUNNING
    assert epochs(service, handle) == [(1, False)]
    host.resume()
    assert finish(service, handle).exit_code == 0
    assert epochs(service, handle) == [(1, False), (2, False), (3, False)]
    assert len(numbers(service, "jobs/job/runs")) == 1


def test_a_host_that_refuses_a_login_is_not_asked_for_every_job(tmp_path, host, open_service, caplog, monkeypatch):
    """Many hosts lock out users who ask too often. Preparing the service, or a mended known_hosts, needs no wait."""
    SEARCH.set("this one")
    warned_by = set()
    monkeypatch.setattr(caplog.handler, "filters", [lambda _: warned_by.add(SEARCH.get()) or True])
    monkeypatch.setattr(refusals, "_FIRST", 600.0)
    (tmp_path / "code").mkdir()
    service = open_service([host])
    service.prepare()
    keys = host.folder / "authorized_keys"
    accepted = keys.read_text()
    keys.write_text("")
    host.kill_connections()
    until(lambda: "does not accept" in caplog.text, "refusal")
    for number in range(3):
        service.submit(script(f"job-{number}"))
        time.sleep(0.2)
    assert (host.folder / "sshd.log").read_text().count("[preauth]") == 1
    (said,) = [record.message for record in caplog.records if "does not accept" in record.message]
    assert said.endswith("; the next login is tried in 600 s")
    assert warned_by == {"this one"}
    keys.write_text(accepted)
    service.prepare()
    assert finish(service, service.submit(script("job-3"))).exit_code == 0
    known_hosts = tmp_path / "known_hosts"
    known = known_hosts.read_text()
    known_hosts.write_text("")
    host.kill_connections()
    until(lambda: f"is not in {known_hosts}" in caplog.text, "a host whose key is not known")
    known_hosts.write_text(known)
    assert finish(service, service.submit(script("job-4"))).exit_code == 0


def test_a_host_that_refuses_logins_is_asked_more_often_while_it_has_jobs(tmp_path, host, open_service, monkeypatch):
    """They are given up after `lost_after`."""
    (tmp_path / "code").mkdir()
    longest = list[float]()
    monkeypatch.setattr(Refusals, "spaced", lambda _, log_in, most: (longest.append(most), log_in()))
    service = open_service([host], lost_after=400)
    service.prepare()
    host.kill_connections()
    until(lambda: longest, "a new connection")
    handle = service.submit(script("job", ["epoch", 1], ["wait", "go"]))
    until(lambda: epochs(service, handle), "first epoch")
    before = len(longest)
    host.kill_connections()
    until(lambda: len(longest) > before, "another connection")
    assert (longest[0], longest[before]) == (math.inf, 100.0)


def test_connections_that_break_are_made_again(two_hosts, open_service):
    host, _ = two_hosts
    service = open_service([host])
    service.prepare()
    handle = service.submit(script("job", ["epoch", 1], ["wait", "go"], ["epoch", 2]))
    until(lambda: epochs(service, handle), "first epoch")
    for _ in range(3):
        host.kill_connections()
        until(lambda: numbers(service, "jobs/job/runs"), "answer")
    (root_on(host) / "go").touch()
    assert finish(service, handle).exit_code == 0
    assert epochs(service, handle) == [(1, False), (2, False)]


def test_a_host_that_is_out_of_order_when_a_search_starts(two_hosts, open_service):
    """Is an error that leaves nothing on the other; or is done without, if the config says so."""
    good, bad = two_hosts
    bad.stop()
    with pytest.raises(ServiceError, match=f"'127.0.0.1:{bad.port}'"):
        open_service(two_hosts).validate()
    assert not (good.folder / "work").exists()
    service = open_service(two_hosts, hosts_required="any")
    service.validate()
    service.prepare()
    assert service.slots() == (f"127.0.0.1:{good.port}/cpu-0",)
    assert finish(service, service.submit(script("job"))).exit_code == 0


def test_each_job_can_be_a_program_of_its_own(two_hosts, open_service):
    service = open_service(two_hosts[:1], reuse=False)
    service.prepare()
    assert finish(service, service.submit(script("job", ["epoch", 1]))).exit_code == 0


def test_a_worker_whose_controller_is_gone_ends(two_hosts, open_service):
    """With its job; the checkpoints stay on the host, for the next controller."""
    host, _ = two_hosts
    service = open_service([host], abandoned_after=2)
    service.prepare()
    handle = service.submit(script("job", ["epoch", 1], ["wait", "go"]))
    until(lambda: epochs(service, handle), "first epoch")
    (pid,) = numbers(service, "jobs/job/runs")
    host.stop()
    until(lambda: not psutil.pid_exists(pid), "end of the abandoned job")
    assert (root_on(host) / "trials/00000/epoch-1").exists()
    host.start()
    state = await_status(service, handle, JobStatus.LOST)
    assert "no controller has called" in state.reason


def test_jobs_take_several_gpus_of_a_host(tmp_path, two_hosts, open_service):
    """A GPU is left over; nvidia-smi is a program of the tests."""
    if find_library("nvidia-ml"):
        pytest.skip("needs a GPU that is not there: NVML of this machine would answer before the stand-in")
    smi = NvidiaSmi(tmp_path / "bin", gpus=5)
    with start_sshd(tmp_path / "c", path_prefix=[smi.folder]) as host:
        service = open_service([host], {"max_trials_per_gpu": 1}, devices_per_job=2)
        service.prepare()
        name = f"127.0.0.1:{host.port}"
        assert service.slots() == (f"{name}/gpu-0+1.0", f"{name}/gpu-2+3.0")
        handle = service.submit(script("job", ["report", "report.json"]))
        assert finish(service, handle).exit_code == 0
        report = json.loads(service.fetch("jobs/job/report.json").read_text())
        assert report["environment"]["CUDA_VISIBLE_DEVICES"] in ("0,1", "2,3")
        service.cleanup()


def test_gpus_of_a_host(tmp_path, two_hosts, open_service):
    """Two jobs a GPU, on those that are named and that no one else uses; nvidia-smi stands in."""
    if find_library("nvidia-ml"):
        pytest.skip("needs a GPU that is not there: NVML of this machine would answer before the stand-in")
    smi = NvidiaSmi(tmp_path / "bin", gpus=4)
    with start_sshd(tmp_path / "c", path_prefix=[smi.folder]) as host, subprocess.Popen(["sleep", "90"]) as stranger:
        smi.use(1, stranger.pid)
        service = open_service([host], {"gpu_indices": [1, 3], "max_trials_per_gpu": 2})
        service.prepare()
        name = f"127.0.0.1:{host.port}"
        assert service.slots() == tuple(f"{name}/gpu-{place}" for place in ("1.0", "1.1", "3.0", "3.1"))
        steps = [["report", "report.json"], ["wait", "go"]]
        handles = [service.submit(script(f"job-{number}", *steps)) for number in range(4)]
        for handle in handles[:2]:
            await_status(service, handle, JobStatus.RUNNING)
        assert [service.status(handle).status for handle in handles[2:]] == [JobStatus.PENDING] * 2
        smi.use(1)
        for handle in handles[2:]:
            await_status(service, handle, JobStatus.RUNNING)
        (root_on(host) / "go").touch()
        seen = []
        for handle in handles:
            assert finish(service, handle).exit_code == 0
            report = json.loads(service.fetch(f"jobs/{handle.job_id}/report.json").read_text())
            seen.append(report["environment"]["CUDA_VISIBLE_DEVICES"])
        assert seen == ["3", "3", "1", "1"]
        service.cleanup()
        stranger.kill()


def test_a_job_does_not_wait_for_a_gpu_of_others_while_another_host_is_free(tmp_path, open_service, monkeypatch):
    """It leaves the host before it has begun there; without a free host it waits on."""
    if find_library("nvidia-ml"):
        pytest.skip("needs a GPU that is not there: NVML of this machine would answer before the stand-in")
    (tmp_path / "code").mkdir()
    monkeypatch.setattr(records, "_IN_VAIN", 0.5)
    used, free = NvidiaSmi(tmp_path / "bin-a", gpus=1), NvidiaSmi(tmp_path / "bin-b", gpus=1)
    with (
        start_sshd(tmp_path / "a", path_prefix=[used.folder]) as first,
        start_sshd(tmp_path / "b", path_prefix=[free.folder]) as second,
        subprocess.Popen(["sleep", "90"]) as stranger,
    ):
        used.use(0, stranger.pid)
        service = open_service([first, second], {"max_trials_per_gpu": 1})
        with service._records.service_lock():  # as if the GPU was free a moment ago
            service._records.enqueue(script("job", ["epoch", 1]))
            service._records.take(f"127.0.0.1:{first.port}", 1, Offer("127.0.0.1", on_gpus=True))
        service.prepare()
        (handle,) = service.list()
        assert finish(service, handle).slot == f"127.0.0.1:{second.port}/gpu-0.0"
        assert epochs(service, handle) == [(1, False)]
        assert not (root_on(first) / "jobs/job/runs").exists()
        service.cleanup()
        stranger.kill()
