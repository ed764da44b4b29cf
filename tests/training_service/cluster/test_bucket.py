"""Requests to storages that do not answer as they should."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from nasflow.config.secret.secret_url import SecretUrl
from nasflow.config.services.storage import ObjectStoreConfig
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
