"""What jobs inherit of the environment."""

import pytest

from nasflow.training_service.machine.environment import EXPLICIT, OF_CONTROLLERS, inherited

KEPT = {"HOME": "/here", "AWS_SECRET_ACCESS_KEY": "the job's own", "PGHOST": "db", "NASFLOW_NATIVE": "0"}
LEFT = ["PGPASSWORD", "PGSSLPASSWORD", "PREFECT_API_KEY", "PREFECT_API_AUTH_STRING", "PREFECT_API_URL", "NASFLOW_STORE"]


def test_jobs_inherit_no_secrets_of_the_controller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.environ", {**KEPT, "MINE": "secret", **dict.fromkeys(LEFT, "secret")})
    assert inherited(["MINE"]) == KEPT
    assert inherited(["MINE"], ["PGPASSWORD", "MINE"]) == {**KEPT, "MINE": "secret", "PGPASSWORD": "secret"}
    assert all(OF_CONTROLLERS.fullmatch(name) for name in EXPLICIT)
