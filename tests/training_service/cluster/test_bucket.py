"""Requests to storages that do not answer as they should."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from nasflow.config.secret.secret_url import SecretUrl
from nasflow.config.services.storage import ObjectStoreConfig
from nasflow.training_service.cluster.storage import bucket as bucket_module
from nasflow.training_service.cluster.storage.base import StorageSilentError
from nasflow.training_service.cluster.storage.bucket import Bucket, texts_of


class Busy(ThreadingHTTPServer):
    """Answers every request by 503, and notes it."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, str]] = []  # path, Authorization
        super().__init__(("127.0.0.1", 0), _Handler)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def refuse(self) -> None:
        assert isinstance(self.server, Busy)
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.requests.append((self.path, self.headers.get("Authorization", "")))
        self.send_response(503)
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_GET = do_HEAD = do_PUT = refuse

    def log_message(self, *_: Any) -> None:
        """Print nothing."""


@pytest.fixture
def busy() -> Iterator[Busy]:
    with Busy() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("scheme", ["az", "abfs"])
@pytest.mark.parametrize("credential", ["AccountKey=aHVzaA==", "SharedAccessSignature=sv=2024-11-04&sig=hush"])
def test_azures_client_repeats_a_request_once(credential: str, scheme: str, busy: Busy, tmp_path: Path) -> None:
    """By itself it repeats it three times, the first after 15 seconds; nasflow repeats what fails, too."""
    where = f"BlobEndpoint=http://127.0.0.1:{busy.server_port}/searches"
    text = f"DefaultEndpointsProtocol=http;AccountName=searches;{where};{credential}"
    config = ObjectStoreConfig(url=SecretUrl(f"{scheme}://bucket/x"), options={"connection_string": text})
    (tmp_path / "file").write_text("text")
    with pytest.raises(StorageSilentError):
        Bucket(config, texts_of(config), "study").put(tmp_path / "file", "object")
    assert len(busy.requests) == 2
    for path, authorization in busy.requests:
        assert path.startswith("/searches/bucket/x/study/object")
        assert "sig=hush" in path or authorization.startswith("SharedKey searches:")


@pytest.fixture
def mute() -> Iterator[int]:
    """The port of a server that accepts connections, and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def azure_at(port: int) -> ObjectStoreConfig:
    text = f"DefaultEndpointsProtocol=http;BlobEndpoint=http://127.0.0.1:{port}/searches;AccountName=searches;AccountKey=aHVzaA=="
    return ObjectStoreConfig(url=SecretUrl("az://bucket/x"), options={"connection_string": text})


def s3_at(port: int) -> ObjectStoreConfig:
    client = {"endpoint_url": f"http://127.0.0.1:{port}", "region_name": "us-east-1"}
    return ObjectStoreConfig(
        url=SecretUrl("s3://bucket/x"), options={"key": "a", "secret": "b", "client_kwargs": client}
    )


@pytest.mark.parametrize("config_at", [azure_at, s3_at], ids=["azure", "s3"])
@pytest.mark.parametrize("call", ["list", "put", "get", "remove"])
def test_a_storage_that_hangs_keeps_others_waiting_for_a_limited_time(
    call: str, config_at: Callable[[int], ObjectStoreConfig], mute: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket_module, "_ANSWERS_WITHIN", 1.0)
    config, file = config_at(mute), tmp_path / "file"
    file.write_text("text")
    bucket = Bucket(config, texts_of(config), "study")
    calls: dict[str, Callable[[], object]] = {
        "list": bucket.list,
        "put": lambda: bucket.put(file, "object"),
        "get": lambda: bucket.get("object", file, size=4),
        "remove": lambda: bucket.remove([f"object-{number}" for number in range(9)]),
    }
    begun = time.monotonic()
    with pytest.raises(
        StorageSilentError, match=r"^training_service\.storage: the storage has not answered within 1 sec"
    ):
        calls[call]()
    assert time.monotonic() - begun < 10
