"""A search goes on, or stops in good order, if a flow run of it is deleted in Prefect."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from prefect import flow
from prefect.client.orchestration import get_client
from prefect.context import FlowRunContext
from prefect.settings import PREFECT_API_URL, PREFECT_LOGGING_TO_API_ENABLED, temporary_settings

from nasflow.config.search import SearchConfig, parse_config
from nasflow.errors import InterruptedSearchError
from nasflow.flows.session.control import controlled, suspendable
from nasflow.flows.session.session import search_session
from tests.flows.forked_commands import ForkedProgram
from tests.flows.recovery.test_kill import processes
from tests.flows.searches import ONE_TRIAL, PrefectServer, Searches
from tests.flows.session.test_control import rounds_of, state_of, wait_until


def gated(folder: Path) -> dict[str, Any]:
    """A search that trains once the file `open` is there."""
    space = {"target": "watched_spaces.py:gated", "params": {"gate": str(folder / "open")}}
    return {**ONE_TRIAL, "space": space, "training_service": {"kind": "local", "slots": 1}}


@contextmanager
def training(searches: Searches) -> Iterator[tuple[ForkedProgram, dict[str, Any]]]:
    """A search whose only job has begun and waits, and its flow run."""
    searches.write("search", **gated(searches.folder))
    with searches.start("run", "search.yaml") as controller:
        try:
            wait_until(lambda: any(event["kind"] == "started" for event in searches.events("search")), "no job", 120)
            yield controller, searches.server.newest_run("nas-search")
        finally:
            (searches.folder / "open").touch()
            if controller.poll() is None:
                controller.kill()


def delete(server: PrefectServer, run: dict[str, Any]) -> None:
    server.call("DELETE", f"/flow_runs/{run['id']}")


def test_a_search_whose_run_is_deleted_stops_and_goes_on_when_it_is_run_again(searches: Searches) -> None:
    with training(searches) as (controller, run):
        rounds = searches.server.rounds_of(run)
        delete(searches.server, run)
        output, _ = controller.communicate(timeout=60)
        assert not processes(searches)
    assert controller.returncode == 130, output
    assert "study 'search' is ended, because its flow run was deleted in Prefect" in output
    assert "the same command continues from here" in output
    assert "Traceback" not in output
    assert [state_of(searches.server, round)["type"] for round in rounds] == ["CANCELLED"]
    assert "trained best model" in searches.run("run", "search.yaml")


def test_a_search_goes_on_if_the_run_of_a_round_is_deleted(searches: Searches) -> None:
    with training(searches) as (controller, run):
        delete(searches.server, searches.server.rounds_of(run)[0])
        (searches.folder / "open").touch()
        output, _ = controller.communicate(timeout=120)
    assert controller.returncode == 0, output
    assert "trained best model" in output and "Traceback" not in output
    assert state_of(searches.server, run)["type"] == "COMPLETED"
    assert rounds_of(searches.server, run) == []


@flow
def next_round() -> None:
    pass


@flow
def doomed(config: SearchConfig) -> None:
    context = FlowRunContext.get()
    assert context is not None and context.flow_run is not None
    with suspendable(config), search_session(config) as session, controlled(session):
        with get_client(sync_client=True) as client:
            client.delete_flow_run(context.flow_run.id)
        next_round()


def test_a_round_that_begins_before_the_search_notices_is_no_traceback(
    tmp_path: Path, prefect_server: PrefectServer
) -> None:
    config = parse_config({**ONE_TRIAL, "name": "doomed", "space": {"target": "nasflow.space.ready:mlp"}})
    config = config.model_copy(update={"store": f"sqlite:///{tmp_path}/s.db", "work_dir": tmp_path})
    with (
        temporary_settings({PREFECT_API_URL: prefect_server.url, PREFECT_LOGGING_TO_API_ENABLED: False}),
        pytest.raises(InterruptedSearchError, match="study 'doomed' is ended, because its flow run was deleted"),
    ):
        doomed(config)
