"""A host's agent passes on the secrets that jobs need, and keeps them in no file."""

import json
from pathlib import Path

import pytest

from nasflow.testing.training_service import finish, script
from nasflow.training_service.ssh.agent import HostAgent
from nasflow.training_service.ssh.messages import Opening

SECRETS = {"$FAR_AWAY": "sftp://me:hush@there"}


def test_jobs_on_a_host_are_given_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGPASSWORD", "hush")
    opening = Opening(
        runner="tests.training_service.local.test_secrets:report",
        preload=[],
        secrets=SECRETS,
        slots=1,
        gpu_indices=None,
        max_trials_per_gpu=1,
        use_active_gpu=True,
        reuse=True,
        idle_timeout=60,
        abandoned_after=60,
    )
    assert "hush" not in repr(opening)
    agent = HostAgent(tmp_path)
    agent.open(opening)
    try:
        handle = agent._local.submit(script("job"))
        assert finish(agent._local, handle).exit_code == 0, agent._local.log_tail(handle)
    finally:
        agent.cleanup()
    report = json.loads((tmp_path / "jobs/job/report.json").read_text())
    assert report["given"] == ["$FAR_AWAY"] and "PGPASSWORD" not in report["environment"]
    files = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert files and not [file for file in files if b"hush" in file.read_bytes()]
