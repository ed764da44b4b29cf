"""What goes wrong outside nasflow ends a command with one sentence."""

import subprocess
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any

import httpx
import pytest
from prefect.settings import PREFECT_API_URL, temporary_settings

from nasflow.flows.server.client import prefect_client
from nasflow.flows.server.errors import PrefectApiError, clear_prefect_errors
from tests.faults.proxy import Proxy
from tests.flows.searches import NASFLOW


@pytest.fixture
def broken_server() -> Iterator[str]:
    """The URL of an API that answers nothing but 500."""
    proxy = Proxy(1)
    proxy.switch(HTTPStatus.INTERNAL_SERVER_ERROR)
    yield f"http://127.0.0.1:{proxy.port}/api"
    proxy.close()


def test_a_server_that_fails_is_named(broken_server: str) -> None:
    with temporary_settings({PREFECT_API_URL: broken_server}), pytest.raises(PrefectApiError) as error:  # noqa: SIM117
        with prefect_client() as client:
            client.read_flows()
    assert str(error.value).startswith(f"Prefect's API at {broken_server} answers 500 Internal Server Error: ")


@pytest.mark.parametrize(
    ("raised", "says"),
    [
        (httpx.HTTPStatusError, "Prefect's own server answers 503 Service Unavailable: "),
        (httpx.ConnectError, "Prefect's own server has ended: run the command again"),
        (RuntimeError, "Prefect's own server has ended: run the command again"),
    ],
)
def test_prefects_own_server_that_ends_has_no_url(raised: type[Exception], says: str) -> None:
    """As on SIGTERM for a whole process group."""
    request = httpx.Request("GET", "http://127.0.0.1:8123/api/flows")
    options: dict[type[Exception], dict[str, Any]] = {
        httpx.HTTPStatusError: {"request": request, "response": httpx.Response(503, request=request)},
        httpx.ConnectError: {"request": request},
    }
    with temporary_settings(restore_defaults={PREFECT_API_URL}), pytest.raises(PrefectApiError) as error:  # noqa: SIM117
        with clear_prefect_errors():
            raise raised("Failed to reach API", **options.get(raised, {}))
    assert str(error.value).startswith(says)


def test_a_disk_that_is_full_is_one_line() -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("no /dev/full on this system")
    with full.open("wb") as output:
        ended = subprocess.run([*NASFLOW, "schema"], stdout=output, stderr=subprocess.PIPE, check=False, text=True)
    assert ended.returncode == 1
    assert ended.stderr.splitlines()[0].startswith("error: No space left on device")
