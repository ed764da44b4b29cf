"""Several services at once, one of them on a host that stops to answer: a real sshd."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nasflow.config.services.ssh import SshServiceConfig
from nasflow.testing.training_service import await_status, finish, script
from nasflow.training_service.base import JobStatus
from nasflow.training_service.several import service as several
from nasflow.training_service.several.service import SeveralServices
from nasflow.training_service.ssh.service import SshService
from tests.sshd import start_sshd
from tests.training_service.several.services import SCRIPTED, local


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Any]:
    with start_sshd(tmp_path / "host") as host:
        yield host


def test_a_job_that_waits_for_a_silent_host_goes_to_another_service(
    tmp_path: Path, host: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, code = tmp_path / "root", tmp_path / "code"
    code.mkdir()
    config = SshServiceConfig(
        hosts=[host.config_host(slots=1)], known_hosts=str(host.known_hosts), ssh_config="/dev/null", connect_timeout=2
    )
    ssh = SshService(config, root, code, runner=SCRIPTED, preload=())
    service = SeveralServices({"ssh": ssh, "local": local(root)}, root)
    service.prepare()
    try:
        first = service.submit(script("first", ["epoch", 1]))
        assert finish(service, first).slot == f"ssh/127.0.0.1:{host.port}/cpu-0"
        busy = service.submit(script("busy", ["wait", "go"]))
        await_status(service, busy, JobStatus.RUNNING)
        monkeypatch.setattr(several, "_WAITS", 1.0)
        host.pause()
        waiting = service.submit(script("waiting"))
        assert service.status(waiting).status is JobStatus.PENDING
        (root / "go").touch()
        assert finish(service, busy).slot == "local/cpu-0"
        assert finish(service, waiting).slot == "local/cpu-0"
    finally:
        host.resume()
        service.cleanup()
