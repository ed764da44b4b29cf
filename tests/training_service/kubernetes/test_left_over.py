"""Jobs that are left over when their runs have ended, and users whom a small API server of the tests' own refuses."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("kubernetes", reason="needs the Kubernetes client: install nasflow[kubernetes]")

from nasflow.errors import ServiceError
from nasflow.testing.training_service import script
from nasflow.training_service.base import JobHandle, JobState, JobStatus
from nasflow.training_service.cluster.kubernetes import manifest, pods
from nasflow.training_service.cluster.kubernetes.service import KubernetesService
from tests.training_service.kubernetes.service import make


class Server(ThreadingHTTPServer):
    """Has Jobs, none of which ever ends by its own account, and a quota of them."""

    def __init__(self) -> None:
        self.jobs: dict[str, dict[str, Any]] = {}
        self.pods: list[dict[str, Any]] = []
        self.quota = 100
        self.forbids = "no"
        self.refusals: dict[str, list[int]] = {}  # by method: how the next requests are answered
        super().__init__(("127.0.0.1", 0), Handler)

    def answer(self, method: str, path: str, body: bytes) -> tuple[int, dict[str, Any]]:
        name = path.partition("?")[0].rpartition("/")[2]
        if refused := self.refusals.get(method):
            return refused.pop(), failure("Forbidden", self.forbids)
        if "/jobs" not in path or method == "GET":
            there = {"jobs": list(self.jobs.values()), "pods": self.pods}.get(name, [])
            items = [each for each in there if each["metadata"]["labels"].get(manifest.ROOT_LABEL, "") in path]
            return 200, {"kind": "List", "items": items, "status": {"allowed": True}}
        if method == "DELETE":
            return (200, {"kind": "Status"}) if self.jobs.pop(name, None) else (404, failure("NotFound", "not found"))
        if len(self.jobs) >= self.quota:
            return 403, failure("Forbidden", "jobs is forbidden: exceeded quota: few, used: count/jobs.batch=1")
        job = json.loads(body)
        if "dryRun" not in path:
            self.jobs[job["metadata"]["name"]] = job
        return 201, job


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        code, answer = self.server.answer(self.command, self.path, body)
        data = json.dumps(answer).encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_POST = do_DELETE = do_GET

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


def failure(reason: str, message: str) -> dict[str, Any]:
    return {"kind": "Status", "status": "Failure", "reason": reason, "message": message}


@pytest.fixture
def api() -> Iterator[Server]:
    with Server() as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield server
        server.shutdown()


def opened(tmp_path: Path, api: Server, root: str = "root") -> KubernetesService:
    config = {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
        "clusters": [{"name": "k", "cluster": {"server": f"http://127.0.0.1:{api.server_port}"}}],
        "users": [{"name": "u", "user": {"token": "any"}}],
    }
    (tmp_path / "kube").write_text(json.dumps(config))
    return make(tmp_path / root, 3, kubeconfig=str(tmp_path / "kube"))


def ended(service: KubernetesService, job_id: str) -> JobHandle:
    """Submit a job whose program begins and ends."""
    handle = service.submit(script(job_id))
    run = service._records.run(job_id)
    assert run is not None
    run.file("began").touch()
    run.end(JobState(status=JobStatus.EXITED, exit_code=0))
    service.prepare()
    assert service.status(handle).exit_code == 0
    return handle


def names(api: Server) -> list[str]:
    """The jobs that Kubernetes has."""
    return [name.split("-")[2] for name in api.jobs]


def test_a_job_whose_pod_goes_on_without_its_program_is_deleted(
    tmp_path: Path, api: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with a sidecar that does not end. Objects that are not of a run here stay."""
    service = opened(tmp_path, api)
    ended(service, "done")
    service.submit(script("runs"))
    other = f"{service._prefix}other-01234567"
    api.jobs[other] = {"metadata": {"name": other, "labels": {}}, "status": {}}
    for _ in range(3):
        service.prepare()
    assert names(api) == ["done", "runs", "other"], "not at once: it may be about to end"
    monkeypatch.setattr(pods, "_LEFT_FOR", 0.0)
    service.prepare()
    assert names(api) == ["runs", "other"]


def test_what_may_not_be_deleted_keeps_no_job_waiting(
    tmp_path: Path, api: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As when the right to delete was taken from the user: a warning says so, once. Only a full quota is waited for."""
    monkeypatch.setattr(pods, "_LEFT_FOR", 0.0)
    service = opened(tmp_path, api)
    ended(service, "done")
    api.refusals["DELETE"] = [403] * 99
    for _ in range(3):
        service.prepare()
    service.submit(script("next"))
    assert names(api) == ["done", "next"]
    kept = "training_service: Kubernetes forbids this: no; jobs that have ended stay there, the search goes on"
    assert [record.message for record in caplog.records] == [kept]
    api.quota = 2
    service.submit(script("last"))
    for _ in range(3):
        service.prepare()
    assert names(api) == ["done", "next"]
    assert len(caplog.records) == 2 and "needs a larger quota" in caplog.records[1].message
    del api.refusals["DELETE"]
    service.prepare()
    assert names(api) == ["next", "last"]


def test_a_job_whose_container_has_ended_without_a_word_ends_beside_a_sidecar(
    tmp_path: Path, api: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And is deleted later, as one that has recorded its end."""
    service = opened(tmp_path, api)
    handle = service.submit(script("job"))
    (job,) = api.jobs.values()
    end = {"exitCode": 137, "reason": "OOMKilled"}
    containers = [{"name": "job", "state": {"terminated": end}}, {"name": "istio-proxy", "state": {"running": {}}}]
    template = job["spec"]["template"]["metadata"]
    status = {"phase": "Running", "containerStatuses": containers}
    api.pods = [{"metadata": {**template, "uid": "one"}, "spec": {"nodeName": "n1"}, "status": status}]
    service.prepare()
    state = service.status(handle)
    assert (state.status, state.oom_kills) == (JobStatus.EXITED, 1)
    assert names(api) == ["job"]
    monkeypatch.setattr(pods, "_LEFT_FOR", 0.0)
    for _ in range(2):
        service.prepare()
    assert names(api) == []


def test_jobs_that_have_ended_make_room_in_a_quota(tmp_path: Path, api: Server) -> None:
    service = opened(tmp_path, api)
    for job_id in ("one", "two"):
        ended(service, job_id)
    api.quota = 2
    service.submit(script("three"))
    assert names(api) == ["three"]
    ended(service, "four")
    opened(tmp_path, api).validate()
    assert names(api) == ["three"]


def test_a_quota_that_is_used_up_is_waited_for(tmp_path: Path, api: Server, caplog: pytest.LogCaptureFixture) -> None:
    service = opened(tmp_path, api)
    service.submit(script("first"))
    api.quota = 1
    waiting = service.submit(script("next"))
    for _ in range(3):
        service.prepare()
        assert service.status(waiting).status is JobStatus.PENDING
    assert [record.message.partition(": exceeded")[0] for record in caplog.records] == [
        "training_service.namespace: 'default' needs a larger quota, or fewer objects: jobs is forbidden"
    ]
    assert names(api) == ["first"]
    opened(tmp_path, api).validate()  # the search is resumed: it waits, as it did before
    with pytest.raises(ServiceError, match=r"^training_service\.namespace: 'default' needs a larger quota"):
        opened(tmp_path, api, "other").validate()
    api.quota = 2
    service.prepare()
    assert names(api) == ["first", "next"]


def test_a_user_who_is_refused_for_a_while_is_waited_for(
    tmp_path: Path, api: Server, caplog: pytest.LogCaptureFixture
) -> None:
    """As while a token is renewed, or the server's rules are away; only one who was known before."""
    service = opened(tmp_path, api)
    handle = service.submit(script("job"))
    service.prepare()
    kubeconfig = (tmp_path / "kube").read_text()
    for refused, file in (([401, 401], kubeconfig), ([403], kubeconfig), ([401], "")):
        caplog.clear()
        api.refusals["GET"] = list(refused)
        (tmp_path / "kube").write_text(file)
        service.prepare()
        assert service.status(handle).status is JobStatus.PENDING
        assert caplog.text.count("submitted jobs continue, others wait") == 1
        (tmp_path / "kube").write_text(kubeconfig)
        service.prepare()
    api.refusals = {"POST": [401, 401], "DELETE": [403]}
    other = service.submit(script("other"))
    assert names(api) == ["job"]
    service.cancel(handle)
    service.prepare()
    assert names(api) == ["other"]
    assert service.status(other).status is JobStatus.PENDING
    api.refusals["GET"] = [403]
    with pytest.raises(ServiceError, match="Kubernetes forbids this"):
        opened(tmp_path, api).prepare()


@pytest.mark.parametrize(
    ("text", "names_role"),
    [
        ('jobs.batch is forbidden: User "u" cannot list resource "jobs" in API group "batch"', True),
        ('jobs.batch "a" is forbidden: policy "images" denied the request', False),
    ],
)
def test_only_who_lacks_rights_is_shown_the_role(tmp_path: Path, api: Server, text: str, names_role: bool) -> None:
    api.refusals["POST"] = [403]
    api.forbids = text
    with pytest.raises(ServiceError) as said:
        opened(tmp_path, api).submit(script("job"))
    assert ("Role" in str(said.value)) == names_role
