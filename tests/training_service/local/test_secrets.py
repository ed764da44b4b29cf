"""What jobs of the local service get of a search's secrets, and what they don't."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from nasflow.config.job_secrets import JobSecrets
from nasflow.config.secret.secrets import given
from nasflow.config.services.local import LocalServiceConfig
from nasflow.testing.training_service import finish, script
from nasflow.training_service.local.service import LocalService
from nasflow.training_service.local.state import LocalState

SECRETS = JobSecrets(withheld=frozenset({"FAR_AWAY"}), texts=lambda: {"$FAR_AWAY": "sftp://me:hush@there"})


def report(job: Path) -> int:
    """The runner of these jobs, in place of training."""
    stat = {"given": sorted(given()), "whole": given() == SECRETS.texts(), "environment": dict(os.environ)}
    (job.parent / "report.json").write_text(json.dumps(stat))
    return 0


def reported(root: Path, **options: Any) -> dict[str, Any]:
    config = LocalServiceConfig(slots=1, idle_timeout=60, **options)
    service = LocalService(config, root, runner=f"{__name__}:report", preload=(), secrets=SECRETS)
    try:
        handle = service.submit(script("job"))
        assert finish(service, handle).exit_code == 0, service.log_tail(handle)
    finally:
        service.cleanup()
    found: dict[str, Any] = json.loads((root / "jobs/job/report.json").read_text())
    return found


@pytest.mark.parametrize("reuse", [True, False])
def test_a_job_is_given_secrets_in_no_file_and_no_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reuse: bool
) -> None:
    for name in ("FAR_AWAY", "PGPASSWORD", "PREFECT_API_KEY", "NASFLOW_STORE", "KEPT"):
        monkeypatch.setenv(name, "hush")
    job = reported(tmp_path / "root", reuse=reuse)
    assert job["given"] == ["$FAR_AWAY"] and job["whole"]
    assert [name for name, value in job["environment"].items() if "hush" in value] == ["KEPT"]
    logs = [file for file in tmp_path.rglob("*") if file.is_file() and file.name != "report.json"]
    assert logs and not [file for file in logs if b"hush" in file.read_bytes()]


def test_a_variable_that_jobs_need_is_passed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGPASSWORD", "hush")
    assert reported(tmp_path / "root", pass_env=["PGPASSWORD"])["environment"]["PGPASSWORD"] == "hush"


def test_a_worker_that_was_given_other_secrets_is_replaced(tmp_path: Path) -> None:
    """Such as one that a killed controller left, before the config was changed."""
    config, workers = LocalServiceConfig(slots=1, idle_timeout=60), []
    for names in ((), ("$FAR_AWAY",), ("$FAR_AWAY",)):
        service = LocalService(config, tmp_path, preload=(), secrets=JobSecrets(names=names))
        service.prepare()
        with (state := LocalState(tmp_path)).lock():
            workers += [worker.process.pid for worker in state.workers()]
    service.cleanup()
    assert workers[0] != workers[1] == workers[2]
