"""Kubeconfigs that are none, and servers that are no API server: no token is shown, and no job is taken as lost."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, TypeVar

import pytest

pytest.importorskip("kubernetes", reason="needs the Kubernetes client: install nasflow[kubernetes]")

from nasflow.config.job_secrets import JobSecrets
from nasflow.errors import ServiceError
from nasflow.testing.training_service import script
from nasflow.training_service.base import JobStatus
from nasflow.training_service.cluster import gone
from nasflow.training_service.cluster.base import ClusterSilentError
from nasflow.training_service.cluster.kubernetes import states
from nasflow.training_service.cluster.kubernetes.service import KubernetesService
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


Running = TypeVar("Running", bound=ThreadingHTTPServer)


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


def serving(server: Running) -> Iterator[Running]:
    """Run a server until the test has ended."""
    with server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture
def portal() -> Iterator[Portal]:
    yield from serving(Portal())


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


class Server(ThreadingHTTPServer):
    """Answers as an API server that knows no objects, in the way given for a method and resource."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []  # method and path
        self.answers: dict[tuple[str, str], tuple[int, dict[str, Any]]] = {}  # by method and resource
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                path, _, query = self.path.partition("?")
                server.asked.append((self.command, f"{path}?{query}" if path.endswith("/events") else path))
                parts = path.split("/")
                resource = parts[parts.index("default") + 1] if "default" in parts else parts[-1]
                code, answer = server.answers.get((self.command, resource), (200, {"kind": "List", "items": []}))
                body = json.dumps(answer).encode()
                self.send_response(code)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_POST = do_DELETE = do_PUT = do_GET

            def log_message(self, *_: Any) -> None:
                """Say nothing."""

        super().__init__(("127.0.0.1", 0), Handler)


@pytest.fixture
def server() -> Iterator[Server]:
    yield from serving(Server())


def failure(code: int, reason: str) -> tuple[int, dict[str, Any]]:
    return code, {"kind": "Status", "status": "Failure", "reason": reason, "message": f"it is {reason}", "code": code}


def opened(tmp_path: Path, server: Server, **options: Any) -> KubernetesService:
    file = written(tmp_path, {"token": "hush"}, f"http://127.0.0.1:{server.server_port}")
    return make(tmp_path / "root", kubeconfig=file, **options)


def test_only_an_object_of_this_name_was_submitted_before(
    tmp_path: Path, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    """Another conflict, as with a quota that is being written, is no word on the job."""
    service = opened(tmp_path, server)
    server.answers["POST", "jobs"] = failure(409, "Conflict")
    handle = service.submit(script("job"))
    run = service._records.run("job")
    assert run is not None and not run.given.exists()
    assert "can't answer now: it is Conflict; submitted jobs continue, others wait" in caplog.text
    server.answers["POST", "jobs"] = failure(409, "AlreadyExists")
    service.prepare()
    assert run.given.exists()
    assert service.status(handle).status is JobStatus.PENDING


SECRET = "/api/v1/namespaces/default/secrets/nasflow-"


@pytest.mark.parametrize("names", [{"pass_env": ["NOT_SET"]}, {"secrets": JobSecrets(needed=frozenset({"NOT_SET"}))}])
def test_cleanup_needs_no_values_to_delete_the_secret(tmp_path: Path, server: Server, names: dict[str, Any]) -> None:
    server.answers["DELETE", "secrets"] = failure(404, "NotFound")
    opened(tmp_path, server, **names).cleanup()
    (deleted,) = [path for method, path in server.asked if method == "DELETE"]
    assert deleted.startswith(SECRET) and deleted.endswith("-environment")


def test_cleanup_without_variables_asks_for_no_secret(tmp_path: Path, server: Server) -> None:
    opened(tmp_path, server).cleanup()
    assert not [path for method, path in server.asked if method == "DELETE"]


@pytest.mark.parametrize(("query", "asks"), [("", False), ("?token=hush", True)])
def test_a_storage_without_secrets_needs_no_right_to_them(
    tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch, query: str, asks: bool
) -> None:
    """As where pods have a role."""
    monkeypatch.chdir(tmp_path)
    service = opened(tmp_path, server, storage={"url": f"file://{tmp_path}/storage{query}"})
    service.submit(script("job"))
    service._remove_rest()
    assert {method for method, path in server.asked if "/secrets" in path} == ({"POST", "DELETE"} if asks else set())


def test_cleanup_without_the_storages_secrets_ends_the_jobs_and_says_so(
    tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STORE", f"file://{tmp_path}/storage")
    storage = {"url": {"env": "STORE"}}
    opened(tmp_path, server, storage=storage).submit(script("job"))
    monkeypatch.delenv("STORE")
    service = opened(tmp_path, server, storage=storage)
    alive = [{"metadata": {"name": "a-job", "labels": {}}, "status": {}}]
    server.answers["GET", "jobs"] = 200, {"kind": "List", "items": alive}
    server.answers["DELETE", "jobs"] = 200, {"kind": "Status"}
    monkeypatch.setattr(gone, "GRACE", 0.0)
    monkeypatch.setattr(service, "_withdraw", lambda names: server.answers.pop(("GET", "jobs")))
    with pytest.raises(ServiceError, match=r"storage\.url: .*STORE is not set; its jobs are ended, but what is stored"):
        service.cleanup()
    assert ("GET", "jobs") not in server.answers
    assert [path for method, path in server.asked if method == "DELETE" and path.startswith(SECRET)]
    monkeypatch.setenv("STORE", f"file://{tmp_path}/storage")
    opened(tmp_path, server, storage=storage).cleanup()
    assert not [path for path in (tmp_path / "storage").rglob("*") if path.is_file()]


def test_events_of_the_namespace_are_read_once_for_all_runs(
    tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And no more for the next looks, while why runs wait is known."""
    monkeypatch.setattr(states, "SAID_AFTER", 0.0)
    service = opened(tmp_path, server, slots=5)
    handles = [service.submit(script(f"job-{i}")) for i in range(5)]
    runs = [run for i in range(5) if (run := service._records.run(f"job-{i}")) is not None]
    jobs = [{"metadata": {"name": service._name(run.name), "labels": {}}, "kind": "Job", "status": {}} for run in runs]
    event = {"message": "no quota", "involvedObject": {"name": service._name(runs[3].name)}}
    server.answers["GET", "jobs"] = 200, {"kind": "List", "items": jobs}
    server.answers["GET", "events"] = 200, {"kind": "List", "items": [event]}
    for _ in range(3):
        service.prepare()
    assert "no quota" in service.status(handles[3]).reason
    assert len([path for _, path in server.asked if "/events" in path]) == 1


NOWHERE = "http://127.0.0.1:9"


@pytest.fixture
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.mark.usefixtures("no_proxies")
@pytest.mark.parametrize(
    ("variables", "proxy_url", "direct"),
    [
        ({"HTTP_PROXY": NOWHERE, "NO_PROXY": "10.0.0.0/8,127.0.0.1"}, None, True),
        ({"HTTP_PROXY": "socks5://any", "NO_PROXY": "127.0.0.1"}, None, True),
        ({"https_proxy": NOWHERE}, None, True),
        ({"http_proxy": "{server}"}, None, False),
        ({"HTTP_PROXY": "{bare}"}, None, False),
        ({"HTTP_PROXY": NOWHERE, "NO_PROXY": "api.invalid"}, "{server}", False),
    ],
    ids=["no_proxy", "no_proxy of another kind", "for https alone", "http_proxy", "without scheme", "proxy-url"],
)
def test_which_proxy_is_used(
    tmp_path: Path,
    server: Server,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    *,
    variables: dict[str, str],
    proxy_url: str | None,
    direct: bool,
) -> None:
    bare = f"127.0.0.1:{server.server_port}"
    here = f"http://{bare}"
    for name, value in variables.items():
        monkeypatch.setenv(name, value.format(server=here, bare=bare))
    told = None if proxy_url is None else proxy_url.format(server=here)
    file = written(tmp_path, {"token": "t"}, here if direct else "http://api.invalid", **{"proxy-url": told})
    make(tmp_path / "root", kubeconfig=file).prepare()
    assert not caplog.text
    assert server.asked[0][1].startswith("/apis" if direct else "http://api.invalid/apis")


@pytest.mark.usefixtures("no_proxies")
@pytest.mark.parametrize("proxy", ["socks5://ada:hush@127.0.0.1:9", "http://", "http://ada:hush@a b", "a:b"])
@pytest.mark.parametrize("told", [True, False], ids=["proxy-url", "environment"])
def test_a_proxy_that_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, proxy: str, told: bool) -> None:
    if not told:
        monkeypatch.setenv("HTTPS_PROXY", proxy)
    file = written(tmp_path, {"token": "t"}, **{"proxy-url": proxy if told else None})
    where = f"the cluster's proxy-url in {file}" if told else "the environment's proxy"
    with pytest.raises(ServiceError) as said:
        make(tmp_path / "root", kubeconfig=file).validate()
    assert str(said.value).startswith(f"training_service.kubeconfig: {where} is no URL of a proxy for http or https")
    assert ("socks proxies can't be used" in str(said.value)) == proxy.startswith("socks5")
    assert "hush" not in str(said.value)


@pytest.mark.usefixtures("no_proxies")
@pytest.mark.parametrize(
    ("scheme", "variables", "says"),
    [
        ("https", {"HTTP_PROXY": NOWHERE}, True),
        ("https", {"HTTP_PROXY": NOWHERE, "NO_PROXY": "127.0.0.1"}, False),
        ("https", {"HTTP_PROXY": NOWHERE, "HTTPS_PROXY": NOWHERE}, False),
        ("https", {}, False),
        ("http", {"HTTP_PROXY": NOWHERE}, False),
    ],
)
def test_a_server_that_only_a_missing_proxy_may_reach(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scheme: str, variables: dict[str, str], *, says: bool
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    file = written(tmp_path, {"token": "t"}, f"{scheme}://127.0.0.1:9")
    with pytest.raises(ClusterSilentError, match="does not answer") as said:
        make(tmp_path / "root", kubeconfig=file).validate()
    assert str(said.value).endswith("; HTTPS_PROXY is not set, and HTTP_PROXY is not for https") == says
