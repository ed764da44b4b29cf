"""A stateful emulator of PAI-DLC, written from its SDK: each request's signature is checked.

It was never compared with the service.
"""

import hashlib
import hmac
import json
import re
from typing import Any
from urllib.parse import quote

from alibabacloud_pai_dlc20201203.models import CreateJobRequest

from tests.hosted.emulator import Emulator, Job, Refused, Request, check


class Dlc(Emulator):
    def __init__(self, key_id: str = "LTAI", secret: str = "s3cret"):
        super().__init__()
        self.keys = {key_id: secret}
        self.quota = 10**6  # jobs
        self.url = f"http://{self.address}"

    def name(self, job: Job) -> str:
        return str(job.body["DisplayName"])

    def answer(self, request: Request) -> tuple[int, Any]:
        self.signed(request)
        check(request.headers.get("x-acs-version") == "2020-12-03", 400, error("InvalidVersion"))
        match request.method, request.path.split("/")[1:], request.headers.get("x-acs-action"):
            case "POST", ["api", "v1", "jobs"], "CreateJob":
                return self.submit(request)
            case "GET", ["api", "v1", "jobs"], "ListJobs":
                return 200, self.listed(request.query)
            case "POST", ["api", "v1", "jobs", job_id, "stop"], "StopJob":
                check(job_id in self.jobs, 404, error("JobNotFound"))
                self.jobs[job_id].stop()
                return 200, {"JobId": job_id, "RequestId": "r"}
        raise Refused(404, error("InvalidAction.NotFound"))

    def signed(self, request: Request) -> None:
        """Compare the signature with one made here (ACS3-HMAC-SHA256)."""
        found = re.fullmatch(
            r"ACS3-HMAC-SHA256 Credential=([^,]+),SignedHeaders=([^,]+),Signature=([0-9a-f]{64})",
            request.headers.get("authorization", ""),
        )
        check(found, 400, error("MissingAuthorization"))
        assert found
        key_id, names, signature = found.groups()
        check(key_id in self.keys, 403, error("InvalidAccessKeyId.NotFound"))
        digest = hashlib.sha256(request.body).hexdigest()
        headers = "".join(f"{name}:{request.headers[name].strip()}\n" for name in names.split(";"))
        pairs = sorted((quote(key, safe="~"), quote(value, safe="~")) for key, value in request.query.items())
        query = "&".join(f"{key}={value}" for key, value in pairs)
        whole = "\n".join((request.method, request.path, query, headers, names, digest))
        text = f"ACS3-HMAC-SHA256\n{hashlib.sha256(whole.encode()).hexdigest()}"
        expected = hmac.new(self.keys[key_id].encode(), text.encode(), hashlib.sha256).hexdigest()
        check(hmac.compare_digest(signature, expected), 403, error("SignatureDoesNotMatch"))
        check(
            {"host", "x-acs-action", "x-acs-date", "x-acs-content-sha256"} <= set(names.split(";")), 403, error("Few")
        )

    def submit(self, request: Request) -> tuple[int, Any]:
        job = CreateJobRequest().from_map(json.loads(request.body)).to_map()
        check(job.get("WorkspaceId") == "77", 404, error("WorkspaceNotFound"))
        check(job.get("JobType") in ("PyTorchJob", "TFJob"), 400, error("InvalidJobType"))
        (task,) = job["JobSpecs"]
        good = task["Type"] == "Worker" and task["PodCount"] == 1 and task["Image"]
        resources = task.get("ResourceConfig", {})
        good = good and (task.get("EcsSpec") or re.fullmatch(r"\d+(\.\d+)?Gi", resources.get("Memory", "")))
        check(good, 400, error("InvalidJobSpec"))
        check(self.unfinished < self.quota, 400, error("NoQuota"))
        job_id = f"dlc{len(self.jobs):08x}"
        self.jobs[job_id] = Job(job, job["UserCommand"], len(self.jobs))
        self.schedule()
        return 200, {"JobId": job_id, "RequestId": "r"}

    def listed(self, query: dict[str, str]) -> dict[str, Any]:
        check(query.get("WorkspaceId") == "77", 404, error("WorkspaceNotFound"))
        check(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", query["StartTime"]), 400, error("InvalidStartTime"))
        newest = sorted(self.jobs, key=lambda job_id: -self.jobs[job_id].number)
        found = [job_id for job_id in newest if query.get("DisplayName", "") in self.name(self.jobs[job_id])]
        size, page = int(query.get("PageSize", 10)), int(query.get("PageNumber", 1))
        check(0 < size <= 100, 400, error("InvalidPageSize"))
        jobs = [self.shown(job_id) for job_id in found[(page - 1) * size : page * size]]
        return {"Jobs": jobs, "TotalCount": len(found), "RequestId": "r"}

    def shown(self, job_id: str) -> dict[str, Any]:
        job = self.jobs[job_id]
        status = "Queuing" if job.waits else job.phase.capitalize()
        return {"JobId": job_id, "DisplayName": self.name(job), "Status": status, "WorkspaceId": "77", **job.says}


def error(code: str) -> dict[str, str]:
    return {"Code": code, "Message": f"{code}, says the emulator.", "RequestId": "r"}
