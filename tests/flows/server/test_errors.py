"""What is said where Prefect's API refuses us, and that a proxy gets no requests to this machine."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from uuid import uuid4

import httpx
import pytest
from prefect.server.schemas.actions import FlowRunCreate
from prefect.settings import (
    PREFECT_API_KEY,
    PREFECT_API_URL,
    PREFECT_CLOUD_API_URL,
    PREFECT_SERVER_API_MAX_PARAMETER_SIZE,
    temporary_settings,
)

from nasflow.flows.server.client import prefect_client, set_up_prefect
from nasflow.flows.server.defaults import PREFECT_DEFAULTS
from nasflow.flows.server.errors import PrefectApiError, clear_prefect_errors
from tests.flows.searches import PrefectServer


class Refusing(BaseHTTPRequestHandler):
    """Answers 401."""

    def do_GET(self) -> None:
        self.send_response(401)
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_POST = do_GET

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def refusing() -> Iterator[str]:
    """The URL of an API that accepts nobody."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Refusing)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/api"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.mark.parametrize(
    ("key", "cloud", "words"),
    [
        (
            "expired",
            False,
            "does not accept our PREFECT_API_KEY (401): run 'prefect cloud login', or set PREFECT_API_KEY",
        ),
        (
            "expired",
            True,
            "does not accept our PREFECT_API_KEY (401): run 'prefect cloud login', or set PREFECT_API_KEY",
        ),
        (None, True, "asks for an API key, and we have none (401): run 'prefect cloud login', or set PREFECT_API_KEY"),
        (None, False, "asks for a password, and we have none (401): set PREFECT_API_AUTH_STRING"),
    ],
)
def test_of_cloud_the_key_is_named(refusing: str, key: str | None, cloud: bool, words: str) -> None:
    settings: dict[Any, Any] = {PREFECT_API_URL: refusing, PREFECT_API_KEY: key}
    if cloud:
        settings[PREFECT_CLOUD_API_URL] = refusing
    with temporary_settings(settings), pytest.raises(PrefectApiError) as refused, prefect_client() as client:
        client.read_work_pools()
    assert words in str(refused.value)


@pytest.mark.parametrize("exceptions", ["", "intranet"])
def test_a_server_of_this_machine_is_reached_past_a_proxy(
    prefect_server: PrefectServer, monkeypatch: pytest.MonkeyPatch, exceptions: str
) -> None:
    for name in (*PREFECT_DEFAULTS, "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL"):
        monkeypatch.setenv(name, "")  # kept, and what it was afterwards
    for name, value in (("HTTP_PROXY", "http://127.0.0.1:9"), ("NO_PROXY", exceptions), ("no_proxy", "")):
        monkeypatch.setenv(name, value)
    with pytest.raises(httpx.ConnectError), httpx.Client() as client:
        client.get(f"{prefect_server.url}/health")
    set_up_prefect(verbose=False)
    with httpx.Client() as client:
        assert client.get(f"{prefect_server.url}/health").status_code == 200
    with pytest.raises(httpx.ConnectError), httpx.Client() as client:
        client.get("http://elsewhere.invalid/")


LARGE = {"config": {"begin_with": ["x" * 600_000]}}


def test_servers_of_nasflow_take_any_config() -> None:
    limit = int(PREFECT_DEFAULTS["PREFECT_SERVER_API_MAX_PARAMETER_SIZE"])
    with temporary_settings({PREFECT_SERVER_API_MAX_PARAMETER_SIZE: limit}):
        assert FlowRunCreate(flow_id=uuid4(), parameters=LARGE).parameters == LARGE


def test_another_server_that_takes_no_large_config_is_named() -> None:
    with (
        temporary_settings({PREFECT_SERVER_API_MAX_PARAMETER_SIZE: 524_288}),
        pytest.raises(ValueError, match="parameters") as large,
    ):
        FlowRunCreate(flow_id=uuid4(), parameters=LARGE)
    request = httpx.Request("POST", "http://prefect:4200/api/flow_runs/")
    response = httpx.Response(422, request=request, json={"exception_detail": str(large.value)})
    with (
        temporary_settings({PREFECT_API_URL: "http://prefect:4200/api"}),
        pytest.raises(PrefectApiError) as refused,
        clear_prefect_errors(),
    ):
        response.raise_for_status()
    said = str(refused.value)
    assert said.startswith("Prefect's API at http://prefect:4200/api takes no config of this size (422): ")
    assert "PREFECT_SERVER_API_MAX_PARAMETER_SIZE=0" in said
