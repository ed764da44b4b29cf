"""Hosts are not trusted: what they may bring, and what is sent to them."""

import logging
import os
import sys

import psutil
import pytest

from nasflow.config.services.ssh import SshServiceConfig
from nasflow.testing.training_service import await_status, epochs, finish, numbers, script, until
from nasflow.training_service.base import JobStatus
from nasflow.training_service.ssh.service import SshService
from tests.sshd import fake_program, ssh_section, start_sshd
from tests.training_service.ssh import hostile_agent

MEGABYTE = 10**6


@pytest.fixture
def open_service(tmp_path):
    """A service on one host of its own, with some Python."""
    (tmp_path / "code").mkdir()
    made = []
    with start_sshd(tmp_path / "host") as host:

        def make(python: str = sys.executable, **service) -> SshService:
            options = {"hosts": [host.config_host(python=python, slots=1)]} | service
            config = SshServiceConfig.model_validate(ssh_section([host], tmp_path / "known_hosts", **options))
            runner = "nasflow.testing.scripted_job:run_job_file"
            made.append(SshService(config, tmp_path / "root", tmp_path / "code", runner=runner, preload=()))
            return made[-1]

        yield make
        for service in made:
            service.cleanup()


def test_a_host_brings_files_of_its_own_job_only(tmp_path, open_service, caplog):
    """Others are skipped with one warning, and the job goes on."""
    good = tmp_path / "root" / "trials" / "00007" / "epoch-0003.safetensors"
    good.parent.mkdir(parents=True)
    good.write_text("good")
    left = tmp_path / "root" / "trials" / "00000" / ".aside-left"
    left.mkdir(parents=True)
    agent = f'*ssh.agent*) shift 5; exec {sys.executable} -P {hostile_agent.__file__} "$@";;'
    python = fake_program(tmp_path, "python", f'#!/bin/sh\ncase "$*" in {agent} *) exec {sys.executable} "$@"; esac\n')
    service = open_service(str(python))
    service.prepare()
    with caplog.at_level(logging.WARNING):
        handle = service.submit(script("job", ["epoch", 1], ["epoch", 2]))
        assert finish(service, handle).exit_code == 0
        assert epochs(service, handle) == [(1, False), (2, False)]
    files = {str(file.relative_to(tmp_path / "root")) for file in (tmp_path / "root").rglob("*") if file.is_file()}
    assert good.read_text() == "good"
    assert {file for file in files if file.startswith("trials")} == {
        "trials/00000/epoch-1",
        "trials/00000/epoch-2",
        "trials/00007/epoch-0003.safetensors",
    }
    assert {file for file in files if file.startswith("jobs")} == {
        f"jobs/job/{name}" for name in ("job.json", "events.jsonl", "exit.json", "runs")
    }
    assert [record.message for record in caplog.records if "not of its job" in record.message] == [
        f"host {service.slots()[0].partition('/')[0]} sends files that are not of its job, such as "
        "'trials/00007/epoch-0009'; they are skipped"
    ]


def test_a_long_log_is_not_sent_when_a_job_is_submitted_again(tmp_path, open_service):
    """Nor are its events: the host's go on where the ones here end."""
    service = open_service(connect_timeout=2.0)
    service.prepare()
    spec = script("job", ["epoch", 1], ["print", "first"], ["wait", "go"], ["epoch", 2], ["print", "second"])
    handle = service.submit(spec)
    until(lambda: "first" in service.log_tail(handle), "first output")
    (pid,) = numbers(service, "jobs/job/runs")
    psutil.Process(pid).parent().kill()
    await_status(service, handle, JobStatus.LOST)
    here = tmp_path / "root" / "jobs" / "job"
    os.truncate(here / "job.log", 500 * MEGABYTE)
    service.submit(spec)
    (there,) = (tmp_path / "host" / "work" / "studies").iterdir()
    until(lambda: len(numbers(service, "jobs/job/runs")) == 2, "second start", 20)
    (there / "go").touch()
    assert finish(service, handle).exit_code == 0
    assert epochs(service, handle) == [(1, False), (1, True), (2, False)]
    assert service.log_tail(handle).splitlines()[-1] == "second"
    assert (there / "jobs" / "job" / "job.log").stat().st_size < MEGABYTE < (here / "job.log").stat().st_size


def test_much_output_comes_in_answers_of_bounded_size(tmp_path, open_service, monkeypatch):
    monkeypatch.setattr("nasflow.training_service.ssh.agent_client.LONGEST", 10 * MEGABYTE)
    service = open_service()
    service.prepare()
    handle = service.submit(script("job", ["print", "first"], ["wait", "go"], ["print", "last"]))
    until(lambda: "first" in service.log_tail(handle), "first output")
    (there,) = (tmp_path / "host" / "work" / "studies").iterdir()
    os.truncate(there / "jobs" / "job" / "job.log", 8 * MEGABYTE)
    (there / "go").touch()
    assert finish(service, handle).exit_code == 0
    log = (tmp_path / "root" / "jobs" / "job" / "job.log").read_bytes()
    assert log == b"first\n".ljust(8 * MEGABYTE, b"\0") + b"last\n"
