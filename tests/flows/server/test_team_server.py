"""A team's server: Prefect on PostgreSQL, a work pool, a worker; deployments run on demand and every minute."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.flows.deployed_searches import PATIENCE, Deployments
from tests.flows.searches import PrefectProcess, Searches
from tests.postgresql import for_prefect

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]  # two minutes at least are waited for the schedule

SETTINGS = {
    "PREFECT_SERVER_DEPLOYMENTS_CONCURRENCY_SLOT_WAIT_SECONDS": "2",  # thirty by default
    "PREFECT_SERVER_CONCURRENCY_INITIAL_DEPLOYMENT_LEASE_DURATION": "3600",  # for a busy machine to start a run in
}
DUE = "expected_start_time"


@dataclass
class Team:
    """What is there: a server, a worker of the pool `team`, and searches that wait for `gate` when they train."""

    searches: Searches
    deployments: Deployments
    store: str
    gate: Path

    def deploy(self, name: str, *options: str, **config: Any) -> None:
        """Make a search a deployment of the pool."""
        self.searches.write(
            name,
            evaluator={
                "kind": "classification",
                "data": {"target": "nasflow.evaluator.data:DigitsRows"},
                "epochs": 1,
            },
            budget={"rounds": 1, "trials_per_round": 1},
            training_service={"kind": "local", "slots": 1},
            store=self.store,
            **config,
        )
        self.searches.run("deploy", f"{name}.yaml", "--work-pool", "team", *options)

    def runs(self, deployment: str) -> list[dict[str, Any]]:
        """A deployment's first two runs, in the order in which they are due."""
        body = {"deployments": {"name": {"any_": [deployment]}}, "sort": "EXPECTED_START_TIME_ASC", "limit": 2}
        found: list[dict[str, Any]] = self.deployments.server.post("/flow_runs/filter", body)
        return found

    def wait_for(
        self, deployment: str, ready: Callable[[dict[str, Any], dict[str, Any]], bool]
    ) -> list[dict[str, Any]]:
        """These two, once they are as they shall be."""
        deadline = time.monotonic() + PATIENCE
        while len(runs := self.runs(deployment)) < 2 or not ready(*runs):
            assert time.monotonic() < deadline, [run["state"] for run in runs] + [self.deployments.log]
            time.sleep(0.5)
        return runs

    def pause(self, deployment: str) -> None:
        """Let its schedule make no more runs; those that have not begun go."""
        self.deployments.server.post(f"/deployments/{self.deployments.read(deployment)['id']}/pause_deployment", {})


@pytest.fixture(scope="module")
def team(tmp_path_factory: pytest.TempPathFactory, postgresql_server: str) -> Iterator[Team]:
    """As yet without deployments."""
    folder = tmp_path_factory.mktemp("team")
    with psycopg.connect(postgresql_server, autocommit=True) as connection:
        connection.execute("CREATE DATABASE prefect")
        connection.execute("CREATE DATABASE nasflow")
    url = for_prefect(postgresql_server, "prefect")
    process = PrefectProcess(folder, {"PREFECT_SERVER_DATABASE_CONNECTION_URL": url, **SETTINGS})
    try:
        process.start()
        deployments = Deployments(folder, process.server)
        searches = Searches(folder, process.server)
        team = Team(searches, deployments, in_database(postgresql_server, "nasflow"), folder / "gate")
        searches.run("setup", "--work-pool", "team")
        with deployments.worker("team"):
            yield team
            team.gate.touch()
    finally:
        process.end()


def in_database(url: str, name: str) -> str:
    return url.replace("/postgres?", f"/{name}?")


def test_a_run_on_demand_is_watched_to_its_end(team, postgresql_server):
    team.deploy("once", space={"target": "spaces.py:mixed", "params": {"widths": [8, 12, 16]}})
    budget = 'budget={"rounds": 2, "trials_per_round": 1}'
    told = team.deployments.prefect("deployment", "run", "nas-search/once", "--param", budget, "--watch")
    assert "finished successfully in 'Completed'" in " ".join(told.split())
    shown = team.searches.json("show", "once", "--store", team.store)
    assert [record["state"] for record in shown["rounds"]] == ["completed", "completed"]
    assert [trial["status"] for trial in shown["trials"]] == ["trained", "trained"]
    with psycopg.connect(in_database(postgresql_server, "prefect")) as connection:
        recorded = dict(connection.execute("SELECT name, state_name FROM flow_run").fetchall())
    assert recorded == dict.fromkeys(["once", "once: round 0", "once: round 1"], "Completed")


def test_every_minute_a_run_is_due_and_meets_the_one_before(team):
    """It waits for its end, or is cancelled: what the deployment says."""
    gated = {"space": {"target": "watched_spaces.py:gated", "params": {"gate": str(team.gate)}}}
    for name, overlap in (("waits", "wait"), ("skips", "skip")):
        team.deploy(name, "--cron", "* * * * *", "--overlap", overlap, recurring={"study": "new"}, **gated)

    first, second = team.wait_for("skips", states("Running", "Cancelled"))
    assert second["state"]["message"] == "Deployment concurrency limit reached."
    team.pause("skips")

    first, second = team.wait_for("waits", states("Running", "AwaitingConcurrencySlot"))
    assert time_of(second, DUE) - time_of(first, DUE) == timedelta(minutes=1)

    team.gate.touch()
    team.wait_for("waits", lambda first, second: second["state_type"] != "SCHEDULED")
    team.pause("waits")
    first, second = team.wait_for("waits", states("Completed", "Completed"))
    assert time_of(second, "start_time") >= time_of(first, "end_time")
    skipped = team.deployments.wait(team.runs("skips")[0]["id"])
    assert skipped["state_type"] == "COMPLETED"

    studies = {
        study["name"]: study["trials"]["trained"] for study in team.searches.json("studies", "--store", team.store)
    }
    dated = {f"waits-{time_of(run, DUE):%Y%m%d-%H%M}": 1 for run in (first, second)}
    assert studies.items() >= {f"skips-{time_of(skipped, DUE):%Y%m%d-%H%M}": 1, **dated}.items()


def states(*names: str) -> Callable[[dict[str, Any], dict[str, Any]], bool]:
    """Whether two runs have states of these names."""
    return lambda first, second: (first["state_name"], second["state_name"]) == names


def time_of(run: dict[str, Any], event: str) -> datetime:
    return datetime.fromisoformat(run[event])
