"""A stateful emulator of the dashboard of DLTS (DLWorkspace), written from what is known of its source.

It was never compared with the service. Much that the real one does is odd: refusals come with status 200.
"""

import json
import re
import uuid
from typing import Any

from tests.hosted.emulator import Emulator, Job, Refused, Request, check

WANTED = {
    **dict.fromkeys(("team", "vcName", "userName", "jobName", "gpuType", "image", "cmd", "jobtrainingtype"), str),
    **dict.fromkeys(("interactivePorts", "hostNetwork", "isPrivileged", "enableworkpath", "enablejobpath"), bool),
    **{"resourcegpu": int, "mountpoints": list, "env": list, "preemptionAllowed": str, "jobType": str},
}
STATES = {"waiting": "queued", "stopping": "killing", "stopped": "killed", "succeeded": "finished"}


class Dlts(Emulator):
    def __init__(self, password: str = "5f4dcc3b", email: str = "ada@example.com"):
        super().__init__()
        self.password, self.email = password, email
        self.metadata = {"P40": {"num_gpu_per_node": 4}, "V100": {"num_gpu_per_node": 8}}
        self.quota = 10**6  # jobs
        self.url = f"http://{self.address}"

    def name(self, job: Job) -> str:
        return str(job.body["jobName"])

    def answer(self, request: Request) -> tuple[int, Any]:
        query = request.query
        mine = query.get("email") == self.email and self.password in (query.get("password"), query.get("token"))
        check(mine, 403, b"Forbidden")
        match request.method, request.path.split("/")[1:]:
            case "GET", ["api", "teams", team, "clusters", cluster]:
                self.known(cluster)
                check(team == "vision", 404, b"Team is not found")
                return 200, {"id": cluster, "metadata": json.dumps(self.metadata)}
            case "POST", ["api", "clusters", cluster, "jobs"]:
                self.known(cluster)
                return self.submit(json.loads(request.body))
            case "GET", ["api", "v2", "clusters", cluster, "teams", "vision", "jobs"]:
                self.known(cluster)
                newest = sorted(self.jobs, key=lambda job_id: -self.jobs[job_id].number)
                return 200, [self.shown(job_id) for job_id in newest[: int(query.get("limit", 10))]]
            case "PUT", ["api", "clusters", cluster, "jobs", job_id, "status"]:
                self.known(cluster)
                check(json.loads(request.body) == {"status": "killing"}, 400, b"Invalid status")
                return self.kill(job_id)
        raise Refused(404, b"Not Found")

    def known(self, cluster: str) -> None:
        check(cluster in (".default", "first"), 404, b"Cluster is not found")

    def submit(self, job: dict[str, Any]) -> tuple[int, Any]:
        check(isinstance(job.get("team"), str), 400, b"team")
        wrong = [key for key, kind in WANTED.items() if type(job.get(key)) is not kind]
        refusal = {"error": f"Cannot create job! {', '.join(wrong) or 'quota'}"}
        if wrong or self.unfinished >= self.quota:
            return 200, json.dumps(refusal).encode()
        job_id = str(uuid.uuid4())
        self.jobs[job_id] = Job(job, job["cmd"], len(self.jobs))
        self.schedule()
        return 200, json.dumps(json.dumps({"jobId": job_id})).encode()  # as text

    def kill(self, job_id: str) -> tuple[int, Any]:
        job = self.jobs.get(job_id)
        if job is None or not (job.waits or job.alive):
            return 200, {"result": "Cannot Kill the job. Job ID:" + job_id}
        job.stop()
        return 200, {"result": "Success, the job is scheduled to be terminated."}

    def shown(self, job_id: str) -> dict[str, Any]:
        job = self.jobs[job_id]
        status = STATES.get(job.phase, job.phase)
        known = {"jobId": job_id, "jobName": self.name(job), "userName": self.email, "vcName": job.body["vcName"]}
        assert re.fullmatch(r"[0-9a-f-]{36}", job_id)
        return {**known, "jobStatus": status, "jobTime": "Mon, 23 Nov 2026 00:00:00 GMT", **job.says}
