"""Which flow runs on a Prefect server are those of a search."""

from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from prefect.client.orchestration import get_client
from prefect.settings import PREFECT_API_URL, temporary_settings

from nasflow.config.search import SearchConfig, parse_config
from nasflow.flows.recovery import flow_runs
from nasflow.flows.recovery.flow_runs import SearchRuns
from nasflow.flows.ui.run_page import study_tag
from nasflow.study.study import Study
from tests.flows.searches import ONE_TRIAL, PrefectServer


def begun(folder: Path) -> tuple[SearchConfig, str]:
    """The config of a study, and its tag."""
    values = {**ONE_TRIAL, "name": folder.name, "store": f"sqlite:///{folder}/s.db", "work_dir": str(folder)}
    config = parse_config(values)
    with closing(Study.open(config)) as study:
        return config, study_tag(config.name, study.created_at)


def made(server: PrefectServer, config: SearchConfig, state: dict[str, Any], *tags: str) -> str:
    """The id of a flow run of a search."""
    flow = server.post("/flows/", {"name": "nas-search"})["id"]
    parameters = {"config": config.model_dump(mode="json")}
    body = {"flow_id": flow, "name": config.name, "parameters": parameters, "tags": tags, "state": state}
    return str(server.post("/flow_runs/", body)["id"])


def test_a_search_of_the_same_name_elsewhere_is_another(tmp_path: Path, prefect_server: PrefectServer) -> None:
    config, tag = begun(tmp_path)
    others = made(prefect_server, config, {"type": "RUNNING"}, study_tag(config.name, datetime.now(UTC)))
    with temporary_settings({PREFECT_API_URL: prefect_server.url}), get_client(sync_client=True) as client:
        runs = SearchRuns(client, config)
        assert runs.newest(None) is None
        ours = {made(prefect_server, config, {"type": "RUNNING"}, *tags) for tags in ((), (tag,))}
        newest = runs.newest(None)
        assert newest is not None and str(newest.id) in ours
        runs.bury("dead")
    body = {"flow_runs": {"id": {"any_": [others, *ours]}}}
    states = {run["id"]: run["state_type"] for run in prefect_server.post("/flow_runs/filter", body)}
    assert states == {others: "RUNNING", **dict.fromkeys(ours, "CRASHED")}


def test_a_run_is_found_behind_all_that_are_to_come(
    tmp_path: Path, prefect_server: PrefectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flow_runs, "_PAGE", 2)
    config, _ = begun(tmp_path)
    ours = made(prefect_server, config, {"type": "RUNNING"})
    for days in range(1, 5):
        due = (datetime.now(UTC) + timedelta(days=days)).isoformat()
        made(prefect_server, config, {"type": "SCHEDULED", "state_details": {"scheduled_time": due}})
    with temporary_settings({PREFECT_API_URL: prefect_server.url}), get_client(sync_client=True) as client:
        newest = SearchRuns(client, config).newest(None)
    assert newest is not None and str(newest.id) == ours
