"""Kubeconfigs that are none, and servers that are no API server: no token is shown, and no job is taken as lost."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("kubernetes", reason="needs the Kubernetes client: install nasflow[kubernetes]")

from nasflow.errors import ServiceError
from nasflow.training_service.cluster.base import ClusterSilentError
from tests.training_service.kubernetes.service import make
from tests.training_service.stranger.kubeconfigs import written


def test_a_token_that_can_not_be_sent_is_not_shown(tmp_path: Path) -> None:
    file = written(tmp_path, {"token": "hush\nhush"})
    with pytest.raises(ServiceError, match=r"^training_service\.kubeconfig: the token in \S+ has a line break") as said:
        make(tmp_path / "root", kubeconfig=file).validate()
    assert "hush" not in str(said.value)


@pytest.mark.parametrize("server", ["127.0.0.1:9", "https://", "", "ftp://host", "https://a b", "https://h:port"])
def test_a_server_that_is_no_url(tmp_path: Path, server: str) -> None:
    file = written(tmp_path, {"token": "t"}, server)
    with pytest.raises(
        ServiceError, match=r"^training_service\.kubeconfig: the cluster's server in .* is '.*'; give a"
    ):
        make(tmp_path / "root", kubeconfig=file).validate()


@pytest.mark.parametrize("text", ["", "- a", "3", "a: [", "a: !!python/object:os.system x", "\x00"])
def test_a_file_of_another_kind(tmp_path: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where only the variable names it."""
    (tmp_path / "kube").write_text(text)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kube"))
    with pytest.raises(ServiceError, match=rf"^training_service\.kubeconfig: {tmp_path}/kube can't be used: "):
        make(tmp_path / "root").validate()


# --- servers that are none -------------------------------------------------------------------------------------------


class Portal(ThreadingHTTPServer):
    """Answers every request in the same way, as the login page of a proxy does."""

    def __init__(self) -> None:
        self.code, self.body, self.missing = 200, b"", 0
        portal = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                self.send_response(portal.code)
                self.send_header("Content-Length", str(len(portal.body) + portal.missing))
                self.end_headers()
                self.wfile.write(portal.body)

            do_POST = do_DELETE = do_GET

            def log_message(self, *_: Any) -> None:
                """Say nothing."""

        super().__init__(("127.0.0.1", 0), Handler)


@pytest.fixture
def portal() -> Iterator[Portal]:
    with Portal() as made:
        threading.Thread(target=made.serve_forever, daemon=True).start()
        yield made
        made.shutdown()


@pytest.mark.parametrize(
    ("code", "body"),
    [
        (200, b"<html>log in</html>"),
        (200, b""),
        (200, b"{}"),
        (200, b"[]"),
        (200, b"[" * 100_000),
        (200, b'{"items": [{}]}'),
        (200, b'{"kind": "Status", "status": "Failure"}'),
        (200, b"\xff\xfe"),
        (403, b"<html>forbidden</html>"),
        (404, b"<html>not found</html>"),
        (405, b""),
        (502, b"<html>bad gateway</html>"),
    ],
)
def test_what_a_proxy_answers_is_no_word_on_jobs(
    tmp_path: Path, portal: Portal, code: int, body: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """A search that runs waits and says so; one that starts is refused."""
    portal.code, portal.body = code, body
    file = written(tmp_path, {"token": "hush"}, f"http://127.0.0.1:{portal.server_port}")
    service = make(tmp_path / "root", kubeconfig=file)
    service.prepare()
    assert "submitted jobs continue, others wait" in caplog.text
    with pytest.raises(
        ClusterSilentError, match=rf"^training_service.* http://127\.0\.0\.1:{portal.server_port} "
    ) as said:
        service.validate()
    assert len(str(said.value)) < 500
    assert "hush" not in f"{said.value} {caplog.text}"


def test_a_server_that_breaks_off_its_answer(tmp_path: Path, portal: Portal) -> None:
    """As one for https may do, to which http is spoken."""
    portal.code, portal.body, portal.missing = 400, b"Client sent an HTTP request", 24
    file = written(tmp_path, {"token": "t"}, where := f"http://127.0.0.1:{portal.server_port}")
    with pytest.raises(
        ClusterSilentError, match=rf"^training_service\.kubeconfig: {where} breaks .*; if it expects https, correct its"
    ):
        make(tmp_path / "root", kubeconfig=file).validate()


@pytest.mark.parametrize("name", [["job"], 3, None])
def test_a_container_whose_name_is_no_text(tmp_path: Path, portal: Portal, name: Any) -> None:
    portal.body = b'{"kind": "SelfSubjectAccessReview", "status": {"allowed": true}}'
    file = written(tmp_path, {"token": "t"}, f"http://127.0.0.1:{portal.server_port}")
    service = make(tmp_path / "root", kubeconfig=file, pod_template={"spec": {"containers": [{"name": name}]}})
    with pytest.raises(ServiceError, match=r"pod_template\.spec\.containers: should be a list of mappings, each with"):
        service.validate()
