"""What the client of Ray's Jobs API makes of answers that Ray doesn't give: against a real HTTP server."""

import base64
import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any, ClassVar

import pytest

from nasflow.config.search import parse_config
from nasflow.config.services.cluster.ray import RayServiceConfig
from nasflow.errors import ConfigError, ServiceError
from nasflow.testing.training_service import script
from nasflow.training_service.base import JobStatus
from nasflow.training_service.cluster import ray_jobs
from nasflow.training_service.cluster.base import ClusterSilentError
from nasflow.training_service.cluster.ray import RayService
from nasflow.training_service.cluster.ray_jobs import RayJobs


class Answers(BaseHTTPRequestHandler):
    """Gives the class's answer to every request and keeps the request's headers."""

    port = 0
    status, text = 200, "[]"
    headers_out: ClassVar[dict[str, str]] = {}
    asked: ClassVar[list[dict[str, str]]] = []

    def do_GET(self) -> None:
        type(self).asked.append({name.lower(): value for name, value in self.headers.items()})
        self.send_response(self.status)
        for name, value in self.headers_out.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(self.text.encode())

    do_POST = do_GET

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def answers() -> Iterator[type[Answers]]:
    class Fresh(Answers):
        asked: ClassVar[list[dict[str, str]]] = []

    with ThreadingHTTPServer(("127.0.0.1", 0), Fresh) as server:
        Fresh.port = server.server_port
        Thread(target=server.serve_forever, daemon=True).start()
        yield Fresh
        server.shutdown()


def jobs(port: int, user: str = "", **options: Any) -> RayJobs:
    return RayJobs(RayServiceConfig(address=f"http://{user}127.0.0.1:{port}", **options))


def test_what_authenticates_is_sent_and_never_shown(answers, monkeypatch):
    monkeypatch.setenv("COOKIE", "session=c00kie")
    client = jobs(answers.port, "me:hu%20sh@", headers={"Cookie": {"env": "COOKIE"}, "X-Team": "t00m"})
    assert client.jobs("nasflow-") == []
    (asked,) = answers.asked
    assert asked["cookie"] == "session=c00kie" and asked["x-team"] == "t00m"
    assert base64.b64decode(asked["authorization"].removeprefix("Basic ")) == b"me:hu sh"
    answers.status, answers.text = 500, "Error\nno such hu%20sh, hu sh, session=c00kie, t00m\n.\n"
    with pytest.raises(ClusterSilentError, match="HTTP 500: no such") as error:
        client.jobs("nasflow-")
    assert not any(secret in str(error.value) for secret in ("hu%20sh", "hu sh", "c00kie", "t00m"))


def test_a_header_of_authorization_goes_before_the_addresss_user(answers):
    jobs(answers.port, "me:hush@", headers={"authorization": "Bearer x"}).jobs("nasflow-")
    assert answers.asked[0]["authorization"] == "Bearer x"


def test_a_redirect_is_not_followed(answers):
    answers.status, answers.headers_out = 302, {"Location": "http://u:hush@elsewhere.example/login"}
    with pytest.raises(
        ClusterSilentError, match=r"redirects to http://u:\*\*\*@elsewhere\.example/login, which is not"
    ):
        jobs(answers.port).jobs("nasflow-")
    assert len(answers.asked) == 1


@pytest.mark.parametrize(
    "text",
    ["<html>login</html>", "{}", '["x"]', json.dumps([{"submission_id": "nasflow-1", "status": "ODD"}]), "[" * 10**5],
)
def test_an_answer_of_another_shape(answers, text):
    answers.text = text
    with pytest.raises(ClusterSilentError, match=r"does not answer as it should: this is no answer of Ray's") as error:
        jobs(answers.port).jobs("nasflow-")
    assert len(str(error.value)) < 700


def test_an_answer_that_does_not_end(answers, monkeypatch):
    monkeypatch.setattr(ray_jobs, "_LONGEST_ANSWER", 1000)
    answers.text = "[" + " " * 5000 + "]"
    with pytest.raises(ClusterSilentError, match="its answer is too long"):
        jobs(answers.port).jobs("nasflow-")


def test_jobs_of_others_may_look_as_they_like(answers):
    ours = {"submission_id": "nasflow-1", "status": "PENDING", "entrypoint": "true"}
    answers.text = json.dumps([{"type": "DRIVER", "submission_id": None}, {"submission_id": "b", "status": 5}, ours])
    assert [job.submission_id for job in jobs(answers.port).jobs("nasflow-")] == ["nasflow-1"]


@pytest.mark.parametrize(
    ("status", "text"), [(400, "x: no such GPU"), (500, "... failed with status code 400: no such GPU")]
)
def test_a_job_that_ray_refuses(answers, status, text):
    answers.status, answers.text = status, text
    with pytest.raises(ServiceError, match=r"Ray refuses such jobs: .*no such GPU") as error:
        jobs(answers.port).submit("nasflow-1", "true", 1, 0)
    assert not isinstance(error.value, ClusterSilentError)


@pytest.mark.parametrize(
    "address", ["ray://h:1", "h:1", "http://", "http://h?token=hush", "http://h:1/#hush", "http://h:x"]
)
def test_an_address_of_no_dashboard(address):
    with pytest.raises(
        ServiceError, match=r"^training_service\.address: .* no address of a dashboard; write http://HOST"
    ):
        RayJobs(RayServiceConfig(address=address)).version()


@pytest.mark.parametrize("value", ["two\nlines", " x", "x ", "", "caf\u00e9", "\x00"])
def test_a_header_that_http_cannot_carry(value):
    with pytest.raises(ServiceError, match=r"^training_service\.headers\.X-Key: HTTP can't carry its value") as error:
        jobs(9, headers={"X-Key": value}).version()
    assert not value.strip() or value not in str(error.value).partition("value")[2]


@pytest.mark.parametrize("name", ["", "a b", "a:", "caf\u00e9", "Content-Length", "host", "a\n"])
def test_a_name_that_is_no_header(name):
    target = {"target": "nasflow.space.ready:mlp"}
    evaluator = {"kind": "classification", "data": {"target": "nasflow.evaluator.data:DigitsRows"}}
    service = {"kind": "ray", "headers": {name: "hush"}}
    with pytest.raises(ConfigError, match=r"training_service\.headers: .* is no name of an HTTP header") as error:
        parse_config({"name": "x", "space": target, "evaluator": evaluator, "training_service": service})
    assert "hush" not in str(error.value)


class Busy(Answers):
    """A cluster without room: Ray gives up each job but the last."""

    given: ClassVar[list[str]] = []
    gives_up_all = False
    message = (
        "Job supervisor actor failed to start within 900.0 seconds. This timeout can be configured by setting the "
        "environment variable RAY_JOB_START_TIMEOUT_SECONDS."
    )

    def do_POST(self) -> None:
        job = json.loads(self.rfile.read(int(self.headers["Content-Length"] or 0)) or "{}")
        self.given.extend(filter(None, [job.get("submission_id")]))
        self._answer({})

    def do_GET(self) -> None:
        failed = {"status": "FAILED", "message": self.message, "driver_node_id": None}
        kept = self.given if self.gives_up_all else self.given[:-1]
        states = [
            {"submission_id": name, "status": "PENDING"} | (failed if name in kept else {}) for name in self.given
        ]
        self._answer(states)

    def _answer(self, content: Any) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(content).encode())


@pytest.fixture
def busy() -> Iterator[type[Busy]]:
    class Fresh(Busy):
        given: ClassVar[list[str]] = []

    with ThreadingHTTPServer(("127.0.0.1", 0), Fresh) as server:
        Fresh.port = server.server_port
        Thread(target=server.serve_forever, daemon=True).start()
        yield Fresh
        server.shutdown()


def test_a_job_that_waits_too_long_for_room_is_submitted_again(busy, tmp_path, caplog):
    """It is no job that ended before it began, three of which would end the search."""
    service = RayService(RayServiceConfig(address=f"http://127.0.0.1:{busy.port}", max_jobs=1), tmp_path / "root")
    handle = service.submit(script("job"))
    for times in range(2, 7):
        busy.gives_up_all = True
        service.prepare()
        busy.gives_up_all = False
        service.prepare()
        assert len(set(busy.given)) == len(busy.given) == times
        assert service.status(handle).status is JobStatus.PENDING
    assert "lower training_service.max_jobs, or raise RAY_JOB_START_TIMEOUT_SECONDS" in caplog.text
    busy.gives_up_all = True
    service.cancel(handle)
    assert service.status(handle).status is JobStatus.CANCELLED
    assert len(busy.given) == 6


def test_a_cluster_that_takes_no_job_is_not_asked_for_the_others(busy, tmp_path, monkeypatch):
    service = RayService(RayServiceConfig(address=f"http://127.0.0.1:{busy.port}", max_jobs=9), tmp_path / "root")
    asked: list[str] = []

    def silent(name: str, *_: Any) -> None:
        asked.append(name)
        raise ClusterSilentError("no answer")

    service.prepare()
    monkeypatch.setattr(service._jobs, "submit", silent)
    service._records.dir.mkdir(exist_ok=True, parents=True)
    with service._records.service_lock():
        for number in range(9):
            service._records.enqueue(script(f"job-{number}"))
    service.prepare()
    assert len(asked) == 1
    service.prepare()
    assert len(asked) == 2
