"""Runs of deployments as a worker has them: paths that would be lost are refused, and a budget is merged."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nasflow.config.code_files import names_files
from nasflow.config.search import parse_config
from nasflow.study.study import Study, list_studies
from tests.flows.forked_commands import run_forked
from tests.flows.searches import HERE, PrefectServer, Searches

EVALUATOR = {"kind": "classification", "data": {"target": "nasflow.evaluator.data:DigitsRows"}, "epochs": 1}
CONFIG: dict[str, Any] = {
    "name": "deployed",
    "space": {"target": "nasflow.space.ready:mlp"},
    "evaluator": EVALUATOR,
    "budget": {"rounds": 1, "trials_per_round": 1},
    "training_service": {"kind": "debug"},
}
RUN = """
import sys
from uuid import UUID
from prefect.client.orchestration import get_client
from prefect.flow_engine import run_flow
from nasflow import flows

for id in sys.argv[2:]:
    with get_client(sync_client=True) as client:
        run = client.read_flow_run(UUID(id))
    state = run_flow(getattr(flows, sys.argv[1]), flow_run=run, return_type="state")
    print(f"{state.type.value} {state.message}")
"""


def run_deployed(server: PrefectServer, folder: Path, flow: str, *parameters: dict[str, Any]) -> list[str]:
    """The final states of runs of a deployment in a folder, one after the other, in a process of their own."""
    name = {"search": "nas-search", "retention": "nas-retention"}[flow]
    id = server.post("/flows/", {"name": name})["id"]
    made = server.post("/deployments/", {"name": folder.name, "flow_id": id})["id"]
    runs = [server.post(f"/deployments/{made}/create_flow_run", {"parameters": each})["id"] for each in parameters]
    done = run_forked(["python", "-c", RUN, flow, *runs], folder, server.env)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


def test_paths_that_would_be_lost_with_the_run_are_refused(tmp_path: Path, prefect_server: PrefectServer) -> None:
    whole = {**CONFIG, "store": f"sqlite:///{tmp_path}/s.db", "work_dir": str(tmp_path)}
    of_files = {**whole, "space": {"target": "spaces.py:mixed"}}
    relative = {**CONFIG, "store": "sqlite+pysqlite:///nasflow.db"}
    by_reference = {**whole, "store": {"env": "STUDIES"}}
    env = prefect_server.env | {"STUDIES": "sqlite:///nasflow.db"}
    runs = [{"config": config} for config in (relative, of_files, by_reference)]
    states = run_deployed(replace(prefect_server, env=env), tmp_path, "search", *runs)
    assert [state.partition(" would be in the temporary folder in which a worker runs")[0] for state in states] == [
        f"FAILED Flow run encountered an exception: ConfigError: config: {keys}"
        for keys in ("store and work_dir", "base_dir", "store")
    ]
    assert not any(tmp_path.iterdir())


def test_a_run_without_the_deployers_folder_needs_modules_only(tmp_path: Path, prefect_server: PrefectServer) -> None:
    gone = str(tmp_path / "of-the-deployer")
    whole = {**CONFIG, "store": f"sqlite:///{tmp_path}/s.db", "work_dir": str(tmp_path), "base_dir": gone}
    states = run_deployed(
        prefect_server,
        tmp_path,
        "search",
        {"config": whole, "budget": {"rounds": 2}},
        {"config": {**whole, "name": "of-files", "space": {"target": "spaces.py:mixed"}}},
    )
    assert states[0].startswith("COMPLETED best is trial "), states
    assert f"base_dir: there is no folder {gone}" in states[1]
    study = Study.load(whole["store"], "deployed")
    assert [trial.round for trial in study.trials()] == [0, 1]
    assert study.config.budget.trials_per_round == 1
    study.close()


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({}, False),
        ({"space": {"target": "spaces.py:mixed"}}, True),
        ({"evaluator": {**EVALUATOR, "data": {"target": "sub/data.py:data"}}}, True),
        ({"evaluator": {**EVALUATOR, "metrics": [{"target": "mine.py:Mine", "name": "mine"}]}}, True),
        ({"evaluator": {**EVALUATOR, "loss": {"target": "mine.py:Loss"}}}, True),
        ({"evaluator": {"kind": "command", "command": ["python", "train.py"]}}, True),
        ({"evaluator": {"kind": "function", "target": "package.train:train"}}, False),
        ({"strategy": {"kind": "custom", "target": "mine.py:Mine"}}, True),
        ({"strategy": {"kind": "custom", "target": "package.mine:Mine"}}, False),
    ],
)
def test_which_configs_name_files(changes: dict[str, Any], named: bool) -> None:
    assert names_files(parse_config({**CONFIG, **changes})) is named


def test_retention_removes_nothing_if_the_export_would_be_lost(searches: Searches) -> None:
    store = f"sqlite:///{searches.folder}/s.db"
    config = {**CONFIG, "store": store, "work_dir": str(searches.folder), "base_dir": str(HERE)}
    Study.open(parse_config(json.loads(json.dumps(config)))).close()
    given = {"studies": "*", "keep": 0, "store": store}
    refused, done = run_deployed(
        searches.server,
        searches.folder,
        "retention",
        {**given, "export_best": "kept"},
        {**given, "export_best": str(searches.folder / "kept"), "dry_run": True},
    )
    assert "ConfigError: export_best: kept would be in the temporary folder" in refused
    assert done == "COMPLETED 1 old studies"
    assert [info.name for info in list_studies(store)] == ["deployed"]
