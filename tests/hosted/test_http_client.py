"""The client of hosted services: TLS, time limits, and what it sends."""

import ssl
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from nasflow.config.services.hosted.openpai import OpenpaiServiceConfig
from nasflow.errors import ConfigError
from nasflow.training_service.cluster.base import ClusterSilentError
from nasflow.training_service.hosted.http_client import HttpClient
from tests.hosted.certificates import write_certificate
from tests.hosted.emulator import Emulator, Fault, Request


class Echo(Emulator):
    """Answers with what was asked."""

    def answer(self, request: Request) -> tuple[int, object]:
        return 200, {"query": request.query, "body": request.body.decode()}


@pytest.fixture
def echo() -> Iterator[Echo]:
    with Echo().running() as echo:
        assert isinstance(echo, Echo)
        yield echo


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    return write_certificate(tmp_path / "certificate.pem")


def config(url: str, **tls) -> OpenpaiServiceConfig:
    return OpenpaiServiceConfig(url=url, user="ada", token={"env": "T"}, image="i", **tls)


def test_who_answers_must_have_a_certificate_that_is_trusted(echo, certificate):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    echo.server.socket = context.wrap_socket(echo.server.socket, server_side=True)
    url = f"https://{echo.address}"
    for trusting in ({"ca_file": certificate}, {"verify_tls": False}):
        assert HttpClient("It", url, tls=config(url, **trusting).tls).ask("GET", "/x").code == 200
    with pytest.raises(ClusterSilentError, match=r"does not answer as it should: .*certificate verify failed"):
        HttpClient("It", url, tls=config(url).tls).ask("GET", "/x")
    with pytest.raises(ConfigError, match=r"^training_service\.ca_file: can't read certificates from /no/such: "):
        HttpClient("It", url, tls=config(url, ca_file="/no/such").tls)


def test_secrets_and_parameters_are_both_sent(echo):
    client = HttpClient("It", f"http://{echo.address}/", params={"password": "a/b+c="})
    found = client.json_of(client.ask("PUT", "/x", params={"limit": 3, "name": "é &="}, body={"a": [1]}))
    assert found == {"query": {"limit": "3", "name": "é &=", "password": "a/b+c="}, "body": '{"a": [1]}'}


def test_an_answer_that_trickles_is_given_up(echo):
    """Each byte arrives in time, the whole does not."""
    real = echo.server.RequestHandlerClass

    class Slow(real):
        def reply(self, code, value):
            self.send_response(200)
            self.send_header("Content-Length", "1000")
            self.end_headers()
            for _ in range(1000):
                try:
                    self.wfile.write(b" ")
                    self.wfile.flush()
                except OSError:
                    return
                time.sleep(0.05)

    echo.server.RequestHandlerClass = Slow
    begin = time.monotonic()
    with pytest.raises(ClusterSilentError, match=r"no whole answer within 0\.5 s"):
        HttpClient("It", f"http://{echo.address}", seconds=0.5).ask("GET", "/x")
    assert time.monotonic() - begin < 20


def test_proxies_of_the_environment_are_not_asked(echo, monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    assert HttpClient("It", f"http://{echo.address}").ask("GET", "/x").code == 200


def test_a_redirect_is_not_followed(echo):
    echo.faults = [Fault(code=307)]
    assert HttpClient("It", f"http://{echo.address}").ask("GET", "/x").code == 307
    assert len(echo.requests) == 1
