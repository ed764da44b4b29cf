"""What is said where Prefect's API refuses us, and that a proxy gets no requests to this machine."""

import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import prefect
import pytest
from prefect.server.schemas.actions import FlowRunCreate
from prefect.settings import (
    PREFECT_API_KEY,
    PREFECT_API_SSL_CERT_FILE,
    PREFECT_API_TLS_INSECURE_SKIP_VERIFY,
    PREFECT_API_URL,
    PREFECT_CLIENT_CUSTOM_HEADERS,
    PREFECT_CLIENT_MAX_RETRIES,
    PREFECT_CLOUD_API_URL,
    PREFECT_SERVER_API_MAX_PARAMETER_SIZE,
    temporary_settings,
)

from nasflow.flows.server.client import prefect_client, set_up_prefect
from nasflow.flows.server.defaults import PREFECT_DEFAULTS
from nasflow.flows.server.errors import PrefectApiError, clear_prefect_errors
from tests.flows.searches import PrefectServer
from tests.hosted.certificates import HOUR, write_certificate


class Answering(BaseHTTPRequestHandler):
    """Gives each request the same answer, but for those of its server's `known` paths, which it gives their own."""

    def do_GET(self) -> None:
        server: Any = self.server
        status, where, body = server.known.get((self.command, self.path), server.answer)
        self.send_response(status)
        if where:
            self.send_header("Location", where)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.do_GET()

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def answering(
    status: int,
    where: str = "",
    body: bytes = b"",
    known: dict[Any, Any] | None = None,
    certificate: Path | None = None,
) -> Iterator[int]:
    """The port of a server of this machine that answers so, with TLS if it has a certificate."""
    server: Any = ThreadingHTTPServer(("127.0.0.1", 0), Answering)
    server.answer, server.known = (status, where, body), known or {}
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    server.handle_error = lambda *_: None  # as clients that do not trust it
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture
def refusing() -> Iterator[str]:
    """The URL of an API that accepts nobody."""
    with answering(401) as port:
        yield f"http://127.0.0.1:{port}/api"


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


def said_of(url: str, **settings: Any) -> str:
    """What is said if this is the URL of Prefect's API."""
    changed = {SETTINGS[name]: value for name, value in settings.items()}
    with (
        temporary_settings({PREFECT_API_URL: url, PREFECT_CLIENT_MAX_RETRIES: 0, **changed}),
        pytest.raises(PrefectApiError) as refused,
        prefect_client() as client,
    ):
        client.read_work_pools()
    return str(refused.value).replace(url, "URL")


SETTINGS: dict[str, Any] = {
    "cloud": PREFECT_CLOUD_API_URL,
    "headers": PREFECT_CLIENT_CUSTOM_HEADERS,
    "certificates": PREFECT_API_SSL_CERT_FILE,
    "key": PREFECT_API_KEY,
}
IT = "Prefect's API at URL"
HEADERS = "PREFECT_CLIENT_CUSTOM_HEADERS to the headers that a proxy in front of it asks for"
WRONG = (
    "URL answers, but not as Prefect's API does: set PREFECT_API_URL to that of a Prefect server, such as "
    "http://127.0.0.1:4200/api"
)
OURS = {"headers": {"X-Token": "hush"}}


@pytest.mark.parametrize(
    ("status", "body", "settings", "says"),
    [
        (
            401,
            b"",
            OURS,
            f"{IT} does not accept our PREFECT_CLIENT_CUSTOM_HEADERS (401): set {HEADERS}",
        ),
        (
            403,
            b"",
            OURS,
            f"{IT} does not accept our PREFECT_CLIENT_CUSTOM_HEADERS (403): set {HEADERS}",
        ),
        (403, b"<html>", {}, f"{IT} refuses us (403): set {HEADERS}, or ask for access to it"),
        (404, b"", {}, WRONG),
        (200, b"<html>Log in</html>", {}, f"{WRONG}, or {HEADERS}"),
        (
            429,
            b"",
            {},
            "Prefect's API at URL answers 429 Too Many Requests: once it is less busy, run the command again",
        ),
    ],
    ids=["401 with headers", "403 with headers", "403", "404", "page", "429"],
)
def test_what_a_proxy_answers_is_one_sentence(status: int, body: bytes, settings: dict[str, Any], says: str) -> None:
    with answering(status, body=body) as port:
        assert said_of(f"http://127.0.0.1:{port}/api", **settings) == says


def test_a_key_of_cloud_that_may_not_do_this_is_named() -> None:
    with answering(403) as port:
        url = f"http://127.0.0.1:{port}/api"
        said = said_of(url, cloud=url)
    assert (
        said == "Prefect's API at URL does not let us do this (403): use an API key with more rights in this workspace"
    )


def test_of_cloud_the_key_is_named_even_with_headers(refusing: str) -> None:
    said = said_of(refusing, cloud=refusing, key="expired", **OURS)
    assert said == (
        "Prefect's API at URL does not accept our PREFECT_API_KEY (401): run 'prefect cloud login', or set "
        "PREFECT_API_KEY to a key that is valid there"
    )


def test_a_server_without_password_whose_proxy_has_one(refusing: str) -> None:
    assert said_of(refusing).endswith(f" as PREFECT_SERVER_API_AUTH_STRING on the server, or {HEADERS}")


def test_redirects_are_named() -> None:
    version = {("GET", "/api/admin/version"): (200, "", f'"{prefect.__version__}"'.encode())}
    with answering(405, known=version) as elsewhere:
        there = f"http://127.0.0.1:{elsewhere}"
        known = {("GET", "/api/admin/version"): (301, f"{there}/api/admin/version", b"")}
        with answering(301, f"{there}/api/work_pools/filter", known=known) as port:  # which makes a GET of a POST
            said = said_of(f"http://127.0.0.1:{port}/api")
        assert said == f"{IT} redirects us to {there}: set PREFECT_API_URL to the URL there"
        there = there.replace("127.0.0.1", "localhost")
        with answering(302, f"{there}/login") as port:
            said = said_of(f"http://127.0.0.1:{port}/api")
        assert said.startswith(f"{IT} redirects us to {there}: set PREFECT_API_URL to where its API is, or")
    with answering(302, "/api/login") as port:
        assert said_of(f"http://127.0.0.1:{port}/api").startswith(f"{IT} redirects us in a circle: ")


@pytest.mark.parametrize(
    ("code", "says"),
    [
        (502, "answers 502 Bad Gateway: the server's log says why; once it works, run the command again"),
        (401, f"does not accept our PREFECT_CLIENT_CUSTOM_HEADERS (401): set {HEADERS}"),
    ],
)
def test_a_redirect_that_works_does_not_hide_why_the_server_refuses(code: int, says: str) -> None:
    with answering(code) as elsewhere:
        there = f"http://127.0.0.1:{elsewhere}/api"
        known = {("GET", "/api/admin/version"): (308, f"{there}/admin/version", b"")}
        with answering(308, f"{there}/work_pools/filter", known=known) as port:
            assert said_of(f"http://127.0.0.1:{port}/api", **OURS) == f"{IT} {says}"


def test_a_password_that_a_redirect_drops_is_named() -> None:
    with answering(401) as elsewhere, answering(308, f"http://127.0.0.1:{elsewhere}/api/x") as port:
        said = said_of(f"http://127.0.0.1:{port}/api", key="valid")
    assert said == f"{IT} redirects us to http://127.0.0.1:{elsewhere}: set PREFECT_API_URL to the URL there"


def test_certificates_that_are_not_read_are_not_blamed() -> None:
    unchecked = {PREFECT_API_SSL_CERT_FILE: "/no/such", PREFECT_API_TLS_INSECURE_SKIP_VERIFY: True}
    with temporary_settings(unchecked), pytest.raises(PermissionError), clear_prefect_errors():
        raise PermissionError("another cause")


def test_tls_that_fails_is_one_sentence(tmp_path: Path) -> None:
    certificate, expired = write_certificate(tmp_path / "one.pem"), write_certificate(tmp_path / "expired.pem", -HOUR)
    of = f"the certificate of {IT} is not trusted here"
    with answering(404, certificate=certificate) as port:
        url = f"https://127.0.0.1:{port}/api"
        said = said_of(url)
        assert said.startswith(
            f"{of} (self-signed certificate): set PREFECT_API_SSL_CERT_FILE to the certificate of the"
        )
        assert said_of(url, certificates=str(certificate)) == WRONG
        said = said_of(url.replace("127.0.0.1", "localhost"), certificates=str(certificate))
        assert said.startswith(of) and said.endswith("set PREFECT_API_URL to a name for which it is valid")
        said = said_of(url, certificates="/no/such")
        assert said == (
            "PREFECT_API_SSL_CERT_FILE or SSL_CERT_FILE: no certificates can be read from /no/such (No such file or "
            "directory): name a file in PEM format"
        )
    with answering(404, certificate=expired) as port:
        said = said_of(f"https://127.0.0.1:{port}/api", certificates=str(expired))
        assert said == f"{of} (certificate has expired): have it renewed"
    with answering(404) as port:
        said = said_of(f"https://127.0.0.1:{port}/api")
        assert said.startswith(f"{IT} can't be reached by TLS (")
        assert said.endswith("): if it has none, begin PREFECT_API_URL with http://")


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
