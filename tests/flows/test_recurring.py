"""Recurring searches on a real server: a study for each run, found again; one that grows; overlap; recovery."""

import contextlib
import os
import re
import signal
import time
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from prefect.settings import PREFECT_API_URL, temporary_settings

from nasflow.config.search import load_config
from nasflow.errors import StudyError
from nasflow.flows.recovery.judge import Standing
from nasflow.flows.recovery.resume import look
from nasflow.recurring import config_of_run, runs_of_study
from nasflow.study.lease import Lease
from nasflow.study.study import Study, list_studies
from tests.flows.deployed_searches import PATIENCE, Deployments
from tests.flows.searches import PrefectServer, Searches

CONFIG: dict[str, Any] = {
    "space": {"target": "spaces.py:mixed", "params": {"widths": list(range(8, 40, 2))}},
    "evaluator": {"kind": "classification", "data": {"target": "nasflow.evaluator.data:DigitsRows"}, "epochs": 4},
    "strategy": {"kind": "random"},
    "budget": {"rounds": 2, "trials_per_round": 1},
    "training_service": {"kind": "local", "slots": 1},
}
DATED = r"dated-\d{8}-\d{4}"


@pytest.fixture
def deployments(searches: Searches) -> Deployments:
    return Deployments(searches.folder, searches.server)


def store_of(folder: Path) -> str:
    return f"sqlite:///{folder}/nasflow.db"


def study_with_an_epoch(folder: Path) -> str:
    """The name of the only study, once an epoch of it is on record."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        with contextlib.suppress(StudyError):  # there is no database yet, or it is being made
            for info in list_studies(store_of(folder)):
                with closing(Study.load(store_of(folder), info.name)) as study:
                    if any(study.epochs([trial.number])[trial.number] for trial in study.trials()):
                        return info.name
        time.sleep(0.2)
    raise AssertionError("no epoch was ever on record")


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_a_run_that_is_killed_and_retried_goes_on_with_its_own_study(searches, deployments):
    slow = {**CONFIG["space"]["params"], "delay": 0.05}  # the run shall last till another was started and cancelled
    searches.write("dated", **{**CONFIG, "space": {**CONFIG["space"], "params": slow}}, recurring={"study": "new"})
    folder = searches.folder
    with deployments.served("dated.yaml", "--overlap", "skip"):
        first = deployments.start("dated")
        name = study_with_an_epoch(folder)
        assert re.fullmatch(DATED, name)
        meanwhile = deployments.start("dated")
        assert deployments.wait(meanwhile)["state_type"] == "CANCELLED"  # the overlap rule
        with closing(Study.load(store_of(folder), name)) as study:
            controller = study.controller()
        assert controller is not None
        os.kill(controller.pid, signal.SIGKILL)
        assert deployments.wait(first)["state_type"] == "CRASHED", deployments.log
        again = {"state": {"type": "SCHEDULED", "message": "retried"}, "force": True}
        deployments.server.post(f"/flow_runs/{first}/set_state", again, PATIENCE)
        assert deployments.wait(first, "COMPLETED", "FAILED")["state_type"] == "COMPLETED", deployments.log
        assert deployments.run(first)["name"] == name
        assert [info.name for info in list_studies(store_of(folder))] == [name]
        assert runs_of_study(store_of(folder), name) == [first]
    with closing(Study.load(store_of(folder), name)) as study:
        assert [trial.round for trial in study.trials()] == [0, 1]
        assert all(trial.status.scored for trial in study.trials())


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_a_study_grows_by_each_run_and_a_run_waits_for_the_one_before(searches, deployments):
    searches.write(
        "growing", **{**CONFIG, "budget": {"rounds": 1, "trials_per_round": 2}}, recurring={"study": "continue"}
    )
    folder = searches.folder
    with deployments.served("growing.yaml"):
        runs = [deployments.start("growing"), deployments.start("growing", budget={"rounds": 2, "trials_per_round": 1})]
        ended = [deployments.wait(run) for run in runs]
    assert [run["state_type"] for run in ended] == ["COMPLETED", "COMPLETED"], deployments.log
    one, other = sorted(ended, key=lambda run: str(run["start_time"]))
    assert one["end_time"] <= other["start_time"]
    with closing(Study.load(store_of(folder), "growing")) as study:
        sizes = [len(study.trials(round=record.number)) for record in study.rounds()]
    assert sizes == ([2, 1, 1] if one["id"] == runs[0] else [1, 1, 2])


def test_recover_knows_the_run_of_a_dated_study(searches, deployments, prefect_server: PrefectServer):
    searches.write("dated", **CONFIG, recurring={"study": "new"})
    server, folder = prefect_server, searches.folder
    config = load_config(folder / "dated.yaml").model_copy(
        update={"store": store_of(folder), "work_dir": folder / "nasflow-runs"}
    )
    made = server.post("/flows/", {"name": "nas-search"})
    deployed = server.post(
        "/deployments/", {"name": f"dated-{folder.name}", "flow_id": made["id"], "parameters": {}, "schedules": []}
    )
    parameters = {"config": config.model_dump(mode="json")}

    def begun(type: str) -> str:
        body = {"parameters": parameters, "state": {"type": "SCHEDULED"}, "name": config.name}
        run = server.post(f"/deployments/{deployed['id']}/create_flow_run", body)["id"]
        server.post(f"/flow_runs/{run}/set_state", {"state": {"type": type}, "force": True})
        return str(run)

    ours, another = begun("RUNNING"), begun("CANCELLED")
    own = config_of_run(config, ours, datetime.now(UTC))
    lease = Lease(seconds=0.01)  # of a controller that is gone
    Study.open(own, lease).close()
    by_hand = config.model_copy(update={"recurring": None})
    Study.open(by_hand, Lease(seconds=0.01)).close()
    time.sleep(0.1)
    with temporary_settings({PREFECT_API_URL: server.url}):
        found = {one.config.name: one for one in look(config.store, timedelta(0), print)}
    assert found[own.name].standing is Standing.DEAD
    run = found[own.name].run
    assert run is not None
    assert (str(run.id), run.deployed) == (ours, True)
    assert found["dated"].run is None  # the deployment's runs are of dated studies, not of the one of this name
    assert another != ours
