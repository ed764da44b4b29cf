"""A stateful emulator of OpenPAI's REST server, version 2, written from what is known of its protocol.

It was never compared with the service. Requests are checked by shape: token, paths, job protocol 2.
"""

import re
import time
from typing import Any

import yaml

from tests.hosted.emulator import Emulator, Job, Refused, Request, check

NAME = re.compile(r"[a-zA-Z0-9_-]{1,255}")
STATES = ("WAITING", "RUNNING", "STOPPING", "STOPPED", "SUCCEEDED", "FAILED", "UNKNOWN")
SUB_STATES = {"WAITING": "AttemptCreationPending", "RUNNING": "AttemptRunning", "STOPPING": "AttemptDeleting"}


class OpenPai(Emulator):
    def __init__(self, token: str = "t0ken", user: str = "ada"):
        super().__init__()
        self.token, self.user = token, user
        self.virtual_clusters = {"default", "vision"}
        self.quota = 100  # jobs
        self.url = f"http://{self.address}/rest-server"

    def answer(self, request: Request) -> tuple[int, Any]:
        match re.fullmatch(r"/rest-server/api/v2(/[^/]+)((?:/[^/]+)*)", request.path):
            case None:
                raise Refused(404, {"code": "NoApiError", "message": f"API {request.path} is not found."})
            case found:
                room, rest = found[1], found[2].removeprefix("/").split("/")
        check(
            request.headers.get("authorization") == f"Bearer {self.token}",
            401,
            {"code": "UnauthorizedUserError", "message": "Your token is invalid."},
        )
        match request.method, room, rest:
            case "GET", "/virtual-clusters", [""]:
                return 200, {name: {"capacity": 100, "usedCapacity": 0} for name in self.virtual_clusters}
            case "POST", "/jobs", [""]:
                return self.submit(request)
            case "GET", "/jobs", [""]:
                return 200, self.listed(request.query)
            case "PUT", "/jobs", [place, "executionType"]:
                return self.stop(place, request)
        raise Refused(404, {"code": "NoApiError", "message": f"API {request.path} is not found."})

    def submit(self, request: Request) -> tuple[int, Any]:
        check(request.headers.get("content-type") == "text/yaml", 400, invalid("no text/yaml"))
        job = yaml.safe_load(request.body)
        role = protocol(job)
        cluster = job.get("defaults", {}).get("virtualCluster", "default")
        missing = {"code": "NoVirtualClusterError", "message": f"Virtual cluster {cluster} is not found."}
        check(cluster in self.virtual_clusters, 400, missing)
        busy = {
            "code": "ForbiddenUserError",
            "message": f"User {self.user} is not allowed to do operation in {cluster}",
        }
        check(len(self.jobs) < self.quota, 403, busy)
        conflict = {"code": "ConflictJobError", "message": f"Job {job['name']} already exists."}
        check(job["name"] not in self.jobs, 409, conflict)
        self.jobs[job["name"]] = Job(job, line_of(job, role), len(self.jobs))
        self.schedule()
        return 202, {"message": f"update job {job['name']} successfully"}

    def listed(self, query: dict[str, str]) -> list[dict[str, Any]]:
        check(set(query) <= {"username", "keyword", "offset", "limit", "order"}, 400, invalid("unknown parameter"))
        limit, offset = int(query.get("limit", 5000)), int(query.get("offset", 0))
        check(0 < limit <= 50000, 400, invalid("limit"))
        keyword = query.get("keyword", "")
        mine = query.get("username", self.user) == self.user
        names = [name for name in reversed(self.jobs) if mine and keyword in f"{self.user} {name}"]
        return [self.summary(name) for name in names[offset : offset + limit]]

    def stop(self, place: str, request: Request) -> tuple[int, Any]:
        body = yaml.safe_load(request.body)
        check(body in ({"value": "STOP"}, {"value": "START"}), 400, invalid("value"))
        user, _, name = place.partition("~")
        missing = {"code": "NoJobError", "message": f"Job {name} is not found."}
        check(user == self.user and name in self.jobs, 404, missing)
        self.jobs[name].stop()
        return 202, {"message": f"execute job {name} successfully"}

    def lose_node(self, job: Job) -> None:
        """The job's node fails; as for all failures of its platform, OpenPAI starts the job's task again."""
        with self.lock:
            assert job.container is not None
            job.container.kill()
            job.container = None

    def summary(self, name: str) -> dict[str, Any]:
        job = self.jobs[name]
        state = job.phase.upper()
        code = -210 if state == "STOPPED" else None
        if job.container is not None and state in ("SUCCEEDED", "FAILED"):
            code = job.container.exit_code
        assert state in STATES
        now = int(time.time() * 1000)
        return {
            "name": name,
            "username": self.user,
            "state": state,
            "subState": SUB_STATES.get(state, "Completed"),
            "executionType": "STOP" if job.stopping else "START",
            "retries": 0,
            "submissionTime": int(job.created * 1000),
            "createdTime": int(job.created * 1000),
            "launchedTime": None if job.container is None else int(job.created * 1000),
            "completedTime": now if state in ("STOPPED", "SUCCEEDED", "FAILED") else None,
            "appExitCode": code,
            "virtualCluster": job.body["defaults"]["virtualCluster"],
            **job.says,
        }


def invalid(what: str) -> dict[str, str]:
    return {"code": "InvalidProtocolError", "message": f"invalid: {what}"}


def protocol(job: Any) -> dict[str, Any]:
    """Check a job in the job protocol; return its only role."""
    check(isinstance(job, dict), 400, invalid("no mapping"))
    for key in ("protocolVersion", "name", "type", "prerequisites", "taskRoles"):
        check(key in job, 400, invalid(f"{key} is missing"))
    check(job["protocolVersion"] in (2, "2") and job["type"] == "job", 400, invalid("protocolVersion or type"))
    check(NAME.fullmatch(job["name"]), 400, invalid("name"))
    images = {each["name"] for each in job["prerequisites"] if each["type"] == "dockerimage" and each["uri"]}
    (role,) = job["taskRoles"].values()
    check(all(re.fullmatch(r"[a-zA-Z_]\w*", name) for name in job["taskRoles"]), 400, invalid("name of a role"))
    check(role.get("dockerImage") in images, 400, invalid("dockerImage"))
    resources = role.get("resourcePerInstance", {})
    numbers = [resources.get(key) for key in ("cpu", "memoryMB", "gpu")]
    check(all(type(number) is int and number >= 0 for number in numbers), 400, invalid("resourcePerInstance"))
    commands = role.get("commands")
    check(commands and all(isinstance(each, str) for each in commands), 400, invalid("commands"))
    check(job.get("jobRetryCount", 0) >= 0, 400, invalid("jobRetryCount"))
    return dict(role)


def line_of(job: dict[str, Any], role: dict[str, Any]) -> str:
    """What the role runs, with the job's secrets in their places."""
    secrets = job.get("secrets", {})

    def secret(found: re.Match[str]) -> str:
        check(found[1] in secrets, 400, invalid(f"no secret {found[1]}"))
        return str(secrets[found[1]])

    return re.sub(r"<%\s*\$secrets\.(\w+)\s*%>", secret, "\n".join(role["commands"]))
