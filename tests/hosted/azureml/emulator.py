"""A stateful emulator of Azure Machine Learning's part of Azure Resource Manager, written from what its SDK sends.

It was never compared with the service. Requests are checked by shape: token, API version, paths, command jobs.
"""

import json
import re
from typing import Any
from urllib.parse import urlencode

from tests.hosted.emulator import Emulator, Job, Refused, Request, check

SUBSCRIPTION = "11111111-2222-3333-4444-555555555555"
WORKSPACE = (
    f"/subscriptions/{SUBSCRIPTION}/resourceGroups/lab/providers/Microsoft.MachineLearningServices/workspaces/vision"
)
VERSIONS = {"2024-04-01", "2023-04-01-preview", "2024-01-01-preview", "2025-01-01-preview"}
NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_-]{0,254}")
MAY_CHANGE = {"description", "tags", "displayName", "properties", "isArchived"}
IDENTITY = "/identity/token"  # of a machine's own account, as App Service has it
PAGE = 3  # jobs in a list
STATES = {"waiting": "Queued", "stopping": "CancelRequested", "stopped": "Canceled", "succeeded": "Completed"}


class Azureml(Emulator):
    def __init__(self, token: str = "t0ken"):
        super().__init__()
        self.token = token
        self.computes = {"cpu-cluster": "Succeeded", "broken": "Failed"}
        self.environments = {"torch/versions/2": {"image": "i:2"}}
        self.quota = 10**6  # jobs
        self.url = f"http://{self.address}"
        self.identity = f"{self.url}{IDENTITY}"

    def answer(self, request: Request) -> tuple[int, Any]:
        if request.path == IDENTITY:
            check(request.headers.get("x-identity-header") == "machine", 400, error("BadRequest", "no header"))
            return 200, {"access_token": self.token, "expires_on": "4102444800", "token_type": "Bearer"}
        check(
            request.headers.get("authorization") == f"Bearer {self.token}",
            401,
            error("InvalidAuthenticationToken", "The access token is invalid."),
        )
        check(request.query.get("api-version") in VERSIONS, 400, error("NoRegisteredProviderFound", "api-version"))
        known = request.path == WORKSPACE or request.path.startswith(f"{WORKSPACE}/")
        check(known, 404, error("ResourceNotFound", "The workspace was not found."))
        match request.method, request.path.removeprefix(WORKSPACE).split("/")[1:]:
            case "GET", []:
                return 200, {"id": WORKSPACE, "name": "vision", "properties": {"provisioningState": "Succeeded"}}
            case "GET", ["computes", name]:
                check(name in self.computes, 404, error("ComputeNotFound", f"{name} was not found."))
                properties = {"computeType": "AmlCompute", "provisioningState": self.computes[name]}
                return 200, {"id": request.path, "name": name, "properties": properties}
            case "GET" | "PUT", ["environments", *name]:
                return self.environment(request, "/".join(name))
            case "GET", ["jobs"]:
                return 200, self.listed(request.query)
            case "PUT", ["jobs", name]:
                return self.submit(name, json.loads(request.body))
            case "GET", ["jobs", name]:
                check(name in self.jobs, 404, error("UserError", f"Job {name} not found."))
                return 200, self.shown(name)
            case "POST", ["jobs", name, "cancel"]:
                return self.cancel(name)
        raise Refused(404, error("NotFound", f"No HTTP resource was found at {request.path}"))

    def environment(self, request: Request, name: str) -> tuple[int, Any]:
        if request.method == "PUT":
            properties = json.loads(request.body)["properties"]
            check(properties.get("image"), 400, error("UserError", "image"))
            self.environments[name] = properties
        check(name in self.environments, 404, error("UserError", f"Environment {name} not found."))
        return 200, {
            "id": request.path,
            "name": name.rsplit("/", maxsplit=1)[-1],
            "properties": self.environments[name],
        }

    def submit(self, name: str, body: dict[str, Any]) -> tuple[int, Any]:
        check(NAME.fullmatch(name), 400, error("UserError", "name"))
        job = body["properties"]
        if name in self.jobs:
            first = self.jobs[name].body["properties"]
            changed = [key for key in {*first, *job} - MAY_CHANGE if first.get(key) != job.get(key)]
            said = f"A job with this name already exists; {', '.join(changed)} cannot be changed."
            check(not changed, 400, error("UserError", said))
            return 200, self.shown(name)
        compute = str(job.get("computeId", "")).removeprefix(f"{WORKSPACE}/computes/")
        check(compute in self.computes, 400, error("UserError", f"Unknown compute target '{compute}'."))
        environment = str(job.get("environmentId", "")).removeprefix(f"{WORKSPACE}/environments/")
        known = environment in self.environments or environment.startswith("azureml://registries/")
        check(known, 400, error("UserError", f"Unknown environment '{environment}'."))
        check(job.get("jobType") == "Command" and job.get("command"), 400, error("UserError", "jobType or command"))
        texts = [*job.get("tags", {}).items(), *job.get("environmentVariables", {}).items()]
        check(all(isinstance(text, str) for pair in texts for text in pair), 400, error("UserError", "tags"))
        check(self.unfinished < self.quota, 400, error("UserError", "The quota is used up."))
        variables = job.get("environmentVariables", {})
        self.jobs[name] = Job({"name": name, **body}, job["command"], len(self.jobs), environment=variables)
        self.schedule()
        return 201, self.shown(name)

    def listed(self, query: dict[str, str]) -> dict[str, Any]:
        check(query.get("listViewType") in (None, "ActiveOnly", "ArchivedOnly", "All"), 400, error("UserError", "view"))
        tag, start = query.get("tag"), int(query.get("$skip", "0"))
        found = [name for name, job in self.jobs.items() if tag is None or tag in job.body["properties"]["tags"]][::-1]
        page: dict[str, Any] = {"value": [self.shown(name) for name in found[start : start + PAGE]]}
        if len(found) > start + PAGE:
            page["nextLink"] = f"{self.url}{WORKSPACE}/jobs?{urlencode({**query, '$skip': start + PAGE})}"
        return page

    def cancel(self, name: str) -> tuple[int, Any]:
        check(name in self.jobs, 404, error("UserError", f"Job {name} not found."))
        job = self.jobs[name]
        check(job.waits or job.alive or job.stopping, 400, error("UserError", "The job has ended."))
        job.stop()
        return 202, {}

    def shown(self, name: str) -> dict[str, Any]:
        job = self.jobs[name]
        services = {"Studio": {"jobServiceType": "Studio", "endpoint": f"https://studio.example.com/runs/{name}"}}
        shown = {
            **job.body["properties"],
            "status": STATES.get(job.phase, job.phase.capitalize()),
            "services": services,
            **job.says,
        }
        return {"id": f"{WORKSPACE}/jobs/{name}", "name": name, "properties": shown}


def error(code: str, message: str) -> dict[str, Any]:
    return {"error": {"code": code, "message": message}}
