"""A search goes on, or stops in good order, if a flow run of it is deleted in Prefect."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest
from prefect import flow
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.objects import FlowRun
from prefect.context import FlowRunContext
from prefect.exceptions import ObjectNotFound
from prefect.settings import PREFECT_API_URL, PREFECT_LOGGING_TO_API_ENABLED, temporary_settings
from prefect.states import Completed, Running

from nasflow.config.search import SearchConfig, parse_config
from nasflow.errors import InterruptedSearchError
from nasflow.flows.session.control import controlled, suspendable
from nasflow.flows.session.deleted import end_without_record, is_deleted
from nasflow.flows.session.session import search_session
from tests.flows.forked_commands import ForkedProgram
from tests.flows.recovery.test_kill import processes
from tests.flows.searches import ONE_TRIAL, PrefectServer, Searches
from tests.flows.server.test_errors import answering
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


def this_run() -> FlowRun:
    context = FlowRunContext.get()
    assert context is not None and context.flow_run is not None
    return context.flow_run


@flow
def doomed(config: SearchConfig) -> None:
    with suspendable(config), search_session(config) as session, controlled(session):
        with get_client(sync_client=True) as client:
            client.delete_flow_run(this_run().id)
        next_round()


@pytest.fixture
def config(tmp_path: Path) -> SearchConfig:
    config = parse_config({**ONE_TRIAL, "name": "doomed", "space": {"target": "nasflow.space.ready:mlp"}})
    return config.model_copy(update={"store": f"sqlite:///{tmp_path}/s.db", "work_dir": tmp_path})


@pytest.fixture
def in_this_process(prefect_server: PrefectServer) -> Iterator[None]:
    with temporary_settings({PREFECT_API_URL: prefect_server.url, PREFECT_LOGGING_TO_API_ENABLED: False}):
        yield


@pytest.mark.usefixtures("in_this_process")
def test_a_round_that_begins_before_the_search_notices_is_no_traceback(config: SearchConfig) -> None:
    with pytest.raises(InterruptedSearchError, match="study 'doomed' is ended, because its flow run was deleted"):
        doomed(config)


@flow
def deleted_at_its_end(config: SearchConfig) -> None:
    with search_session(config) as session, controlled(session), get_client(sync_client=True) as client:
        with pytest.raises(ObjectNotFound):  # another run
            client.set_flow_run_state(flow_run_id=uuid4(), state=Completed())
        client.delete_flow_run(this_run().id)


@flow
def calling(config: SearchConfig) -> None:
    with get_client(sync_client=True) as client:
        deleted_at_its_end(config)
        assert client.set_flow_run_state == SyncPrefectClient.set_flow_run_state.__get__(client)
        client.set_flow_run_state(flow_run_id=this_run().id, state=Running(), force=True)


@pytest.mark.usefixtures("in_this_process")
def test_the_client_of_the_calling_flow_is_as_before_once_the_search_has_ended(config: SearchConfig) -> None:
    calling(config)


@pytest.mark.usefixtures("in_this_process")
def test_a_404_of_a_proxy_does_not_say_that_a_run_was_deleted() -> None:
    run = uuid4()
    assert is_deleted(run)
    with (
        answering(404, body=b"<html>") as port,
        temporary_settings({PREFECT_API_URL: f"http://127.0.0.1:{port}/api"}),
        get_client(sync_client=True) as client,
    ):
        end_without_record(client, run)
        with pytest.raises(ObjectNotFound):
            client.set_flow_run_state(run, Completed())
        assert not is_deleted(run)


class Asked(dict[Any, Any]):
    """Counts the requests for which `answering` looks here."""

    count = 0

    def get(self, key: Any, default: Any = None) -> Any:
        self.count += 1
        return super().get(key, default)


@flow
def refused(config: SearchConfig, port: int, code: int) -> None:
    response = httpx.Response(code, request=httpx.Request("GET", f"http://127.0.0.1:{port}/api"))
    with (
        search_session(config) as session,
        temporary_settings({PREFECT_API_URL: f"http://127.0.0.1:{port}/api"}),
        controlled(session),
    ):
        response.raise_for_status()


@pytest.mark.usefixtures("in_this_process")
@pytest.mark.parametrize(("code", "asked"), [(503, 0), (429, 0), (409, 1)])
def test_a_server_that_is_away_is_asked_once_at_most(config: SearchConfig, code: int, asked: int) -> None:
    known = Asked({"": ""})
    with answering(503, known=known) as port, pytest.raises(httpx.HTTPStatusError):
        refused(config, port, code)
    assert known.count == asked
