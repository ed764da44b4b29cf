"""What a check finds on this machine, on a real Slurm, and on servers that refuse; on a good service, nothing."""

import datetime
import os
import signal
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from nasflow.testing.training_service import until
from nasflow.training_service.check.judge import Clock
from tests.faults.clock import Clock as SetClock
from tests.flows.forked_commands import start_forked
from tests.hosted.certificates import write_certificate
from tests.hosted.dlts import Dlts
from tests.hosted.openpai import OpenPai
from tests.slurm import Slurm
from tests.training_service.check.checks import SEARCH, check, only_error

HOSTED = {"image": "i:1", "python": sys.executable, "poll_seconds": 0.3, "memory_gb": 1, "max_jobs": 1}
SLURM = {"kind": "slurm", "poll_seconds": 0.3, "max_jobs": 1}
CUSTOM = """
from nasflow.config.services.local import LocalServiceConfig
from nasflow.training_service.local.service import LocalService

class Mine(LocalService):
    def __init__(self, root{runner}):
        super().__init__(LocalServiceConfig(slots=1), root{passed}, preload=[])
"""


@pytest.fixture
def read_only(tmp_path: Path) -> Iterator[Path]:
    """A folder on a disk that is mounted read-only; for who is not root, one without the right to write."""
    folder = tmp_path / "read-only"
    folder.mkdir()
    if os.geteuid() != 0:
        folder.chmod(0o555)
        yield folder
        return
    subprocess.run(["mount", "--bind", folder, folder], check=True)
    subprocess.run(["mount", "-o", "remount,bind,ro", folder], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


# --- in order --------------------------------------------------------------------------------------------------------


def test_each_slot_of_this_machine_is_checked(tmp_path: Path) -> None:
    found = check(tmp_path, kind="local", slots=2)
    assert found.in_order, found.problems
    assert len(found.slots) == 2
    assert {slot.slot for slot in found.slots} <= {"cpu-0", "cpu-1"}  # a slow worker's job may go to the other
    for slot in found.slots:
        report = slot.report
        assert report.python == ".".join(map(str, sys.version_info[:3]))
        assert report.nasflow is not None
        assert report.torch is not None
        assert min(report.free, report.write_speed, report.read_speed) > 0
        assert slot.clock is not None
        assert slot.clock.least <= 0 <= slot.clock.most


def test_jobs_in_this_process_are_checked(tmp_path: Path) -> None:
    assert check(tmp_path, kind="debug").problems == []


def test_a_custom_service_is_checked_if_it_takes_a_runner(tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    mine = tmp_path / "code" / "mine.py"
    mine.write_text(CUSTOM.format(runner=", runner", passed=", runner"))
    assert check(tmp_path, kind="custom", target="mine.py:Mine").problems == []
    mine.with_name("other.py").write_text(CUSTOM.format(runner="", passed=""))
    error = only_error(check(tmp_path, kind="custom", target="other.py:Mine"))
    assert "other.py:Mine does not take these params: got an unexpected keyword argument 'runner'" in error


def test_a_slurm_in_order(tmp_path: Path, slurm: Slurm) -> None:
    found = check(tmp_path, **SLURM)
    assert found.in_order, found.problems
    assert [slot.slot for slot in found.slots] == ["slurm-0"]


# --- not in order ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seconds", [3600, -3600])
def test_a_clock_that_is_off(tmp_path: Path, slurm: Slurm, seconds: int) -> None:
    clock = SetClock(tmp_path / "clock")
    clock.set(seconds)
    exports = "; ".join(f"export {name}='{value}'" for name, value in clock.environment.items())
    found = check(tmp_path, **SLURM, env_setup=exports)
    way = "ahead of" if seconds > 0 else "behind"
    error = only_error(found)
    assert error.startswith("slurm-0: its clock is at least 3")
    assert f" s {way} this machine's; set up NTP on both" in error
    (slot,) = found.slots
    assert slot.clock is not None
    assert slot.clock.least <= seconds <= slot.clock.most


def test_a_clock_is_off_only_if_that_is_sure() -> None:
    assert not Clock(-31.0, -29.0).off
    assert not Clock(-100.0, 100.0).off
    assert Clock(-100.0, -31.0).off
    assert Clock(31.0, 100.0).off


def test_an_old_python(tmp_path: Path, slurm: Slurm) -> None:
    """This Python given an option that it does not know either ends with the same words as one before 3.11."""
    python = tmp_path / "python"
    lines = ["#!/bin/sh", '[ "$1" = -P ] || exit 9', f"{sys.executable} -Z 2>&1 | sed s/-Z/-P/ >&2", "exit 2"]
    python.write_text("\n".join(lines) + "\n")
    python.chmod(0o755)
    error = only_error(check(tmp_path, **SLURM, python=str(python)))
    assert error.endswith(
        "; the Python there is older than 3.11; name a newer one: training_service.python, or what 'python3' is in the "
        "image or on the node"
    )


def test_a_gpu_that_torch_does_not_see(tmp_path: Path, slurm: Slurm) -> None:
    error = only_error(check(tmp_path, **SLURM, gpus_per_job=1))
    assert error.startswith("slurm-0: jobs are to have a GPU, and torch ")
    assert "install a build for CUDA" in error


def test_no_gpu_of_that_name(tmp_path: Path, slurm: Slurm) -> None:
    error = only_error(check(tmp_path, **SLURM, gpus_per_job=1, options=["--gres=gpu:h100:1"]))
    assert error.endswith("; no node has that; correct gpus_per_job or options")


def test_jobs_that_get_no_place(tmp_path: Path, slurm: Slurm) -> None:
    error = only_error(check(tmp_path, 0.0, **SLURM, options=["--begin=now+1hour"]))
    assert "slurm: no place for its small job in time, because Slurm's job " in error
    assert " waits: BeginTime; --seconds allows more" in error


def test_an_interrupted_check_leaves_no_job(tmp_path: Path, slurm: Slurm) -> None:
    section = {**SLURM, "options": ["--begin=now+1hour"]}
    (tmp_path / "search.yaml").write_text(yaml.safe_dump({**SEARCH, "training_service": section, "work_dir": "runs"}))

    def queue() -> str:
        return slurm.call("squeue", "--noheader", "--states=PENDING,RUNNING", "--format=%j")

    with start_forked(["nasflow", "services", "check", "search.yaml"], tmp_path, os.environ) as program:
        until(lambda: "-check-0-" in queue(), "the job", 120)
        program.send_signal(signal.SIGINT)
        assert program.wait(120) != 0, program.said()
    assert "-check-0-" not in queue()
    assert [path.name for path in tmp_path.iterdir()] == ["search.yaml"]


def test_a_folder_that_can_not_be_written_here(tmp_path: Path, read_only: Path) -> None:
    error = only_error(check(tmp_path, work_dir="read-only/runs", kind="local", slots=1))
    assert error == f"local: training_service: can't write below {read_only}; set work_dir to a folder you own"


def test_a_folder_that_nodes_can_not_write(tmp_path: Path, slurm: Slurm, read_only: Path) -> None:
    storage = {"local": str(tmp_path), "remote": str(read_only)}
    error = only_error(check(tmp_path, **SLURM, storage=storage))
    assert "slurm: its small job was lost: " in error
    assert "; it has no log: let nodes write training_service.storage, or work_dir" in error


def test_a_token_that_openpai_does_not_take(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAI_TOKEN", "another")
    with OpenPai("right").running() as pai:
        assert isinstance(pai, OpenPai)
        error = only_error(
            check(tmp_path, kind="openpai", url=pai.url, user="ada", token={"env": "PAI_TOKEN"}, **HOSTED)
        )
    assert error.startswith("openpai: training_service.token: OpenPAI does not take it, it may have expired; create an")


def test_a_password_that_dlts_does_not_take(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DLTS_PASSWORD", "another")
    section = {"kind": "dlts", "email": "ada@example.com", "password": {"env": "DLTS_PASSWORD"}, "team": "vision"}
    with Dlts("right").running() as dlts:
        assert isinstance(dlts, Dlts)
        error = only_error(check(tmp_path, url=dlts.url, **section, **HOSTED))
    assert error.startswith("dlts: training_service.password: ")


def test_a_certificate_that_has_expired(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAI_TOKEN", "right")
    certificate = write_certificate(tmp_path / "certificate.pem", -datetime.timedelta(hours=1))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    pai = OpenPai("right")
    pai.server.socket = context.wrap_socket(pai.server.socket, server_side=True)
    with pai.running():
        section = {"url": f"https://{pai.address}", "user": "ada", "token": {"env": "PAI_TOKEN"}}
        error = only_error(check(tmp_path, kind="openpai", ca_file=str(certificate), **section, **HOSTED))
    assert error.endswith("; renew that server's certificate, or set this machine's clock if that is wrong")


@pytest.mark.parametrize(
    "section",
    [
        {"kind": "openpai", "url": "http://127.0.0.1:9", "user": "ada", "token": {"env": "PAI_TOKEN"}, **HOSTED},
        {"kind": "ray", "address": "http://127.0.0.1:9"},
    ],
    ids=["openpai", "ray"],
)
def test_a_service_that_can_not_be_reached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, section: dict) -> None:
    monkeypatch.setenv("PAI_TOKEN", "right")
    error = only_error(check(tmp_path, **section))
    assert "127.0.0.1:9" in error
    assert error.endswith("correct its address and port, and let no firewall, VPN or proxy keep this machine from it")


def test_an_object_store_that_refuses_to_be_written(tmp_path: Path, slurm: Slurm) -> None:
    """Its server asks the policies of users, of whom this one may only read."""
    from tests.object_store.s3 import S3

    server = S3()
    try:
        key, secret = server.reader()
        storage = server.storage()
        storage["options"] |= {"key": key, "secret": secret}
        storage = {**storage, "python": sys.executable}
        with server.asking_policies():
            error = only_error(check(tmp_path, **SLURM, storage=storage))
    finally:
        server.close()
    assert error.startswith("slurm: training_service.storage: the storage does not answer as it should: ")
    assert error.endswith("; give the user or key of the jobs the right to write")
    assert secret not in error
