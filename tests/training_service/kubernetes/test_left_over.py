"""Jobs in Kubernetes that are left over when their runs have ended, on a small API server of the tests' own."""

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
from nasflow.training_service.cluster.kubernetes import pods
from nasflow.training_service.cluster.kubernetes.service import KubernetesService
from tests.training_service.kubernetes.service import make


class Server(ThreadingHTTPServer):
    """Has Jobs, none of which ever ends by its own account, and a quota of them."""

    def __init__(self) -> None:
        self.jobs: dict[str, dict[str, Any]] = {}
        self.quota = 100
        super().__init__(("127.0.0.1", 0), Handler)

    def answer(self, method: str, path: str, body: bytes) -> tuple[int, dict[str, Any]]:
        name = path.partition("?")[0].rpartition("/")[2]
        if "/jobs" not in path or method == "GET":
            items = list(self.jobs.values()) if name == "jobs" else []
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


def opened(tmp_path: Path, api: Server) -> KubernetesService:
    config = {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
        "clusters": [{"name": "k", "cluster": {"server": f"http://127.0.0.1:{api.server_port}"}}],
        "users": [{"name": "u", "user": {"token": "any"}}],
    }
    (tmp_path / "kube").write_text(json.dumps(config))
    return make(tmp_path / "root", 3, kubeconfig=str(tmp_path / "kube"))


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
    with pytest.raises(ServiceError, match=r"^training_service\.namespace: 'default' needs a larger quota"):
        service.validate()
    api.quota = 2
    service.prepare()
    assert names(api) == ["first", "next"]
