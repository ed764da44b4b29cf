"""Runs jobs on Azure Machine Learning through the REST API of Azure Resource Manager."""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import parse_qsl, quote, urlsplit

from nasflow.clean_text import one_line
from nasflow.config.services.hosted.azureml import AzuremlServiceConfig
from nasflow.errors import ServiceError
from nasflow.training_service.base import JobStatus
from nasflow.training_service.cluster.base import ClusterSilentError
from nasflow.training_service.cluster.runs import Run, name_prefix
from nasflow.training_service.cluster.seen import Seen
from nasflow.training_service.hosted.azure_token import AzureToken
from nasflow.training_service.hosted.base import HostedService, merged
from nasflow.training_service.hosted.http_client import Answer, HttpClient
from nasflow.training_service.local.service import RUNNER

_API, _VERSION = "api-version", "2024-04-01"
_PAGES, _RECENT = 1000, 10  # of a list that are read: of all jobs, and to find those that may run
_OF_AN_IMAGE = "CliV2AnonymousEnvironment"  # what Azure's own tools call the environment of a bare image
_REGISTRY = "azureml://"  # begins the id of an environment that is no workspace's
_TEMPLATE = "${{"  # begins a reference in a command
_WAITING = {"NotStarted", "Scheduled", "Starting", "Provisioning", "Preparing", "Queued"}
_ENDED = {"Completed", "Failed"}
_GONE = {"Failed", "Deleting"}  # of a compute


class AzuremlService(HostedService):
    """Runs each job as a command job of that name, of which a workspace has only one.

    Args:
        config: the workspace, and what each job takes.
        root: the folder of the study's jobs and checkpoints.
        runner: `module:function` that runs one `job.json` and returns an exit code.
    """

    kind = "azureml"

    def __init__(self, config: AzuremlServiceConfig, root: Path, runner: str = RUNNER):
        super().__init__(config, root, runner)
        self._config = config
        self._client: HttpClient | None = None
        self._client_token = ""
        where = urlsplit(config.url)
        self._token = AzureToken(config.token, f"{where.scheme}://{where.netloc}/.default")
        self._place = (
            f"/subscriptions/{config.subscription_id}/resourceGroups/{quote(config.resource_group)}"
            f"/providers/Microsoft.MachineLearningServices/workspaces/{config.workspace_name}"
        )
        self._tag = name_prefix(self._root).rstrip("-")

    def validate(self) -> None:  # noqa: D102
        super().validate()
        config = self._config
        self._named(
            "",
            f"workspace_name: Azure knows no workspace '{config.workspace_name}' in resource group "
            f"'{config.resource_group}' of subscription {config.subscription_id}",
        )
        compute = self._named(
            f"/computes/{config.compute_target}",
            f"compute_target: workspace '{config.workspace_name}' has no compute '{config.compute_target}'",
        )
        state = one_line(str(compute.get("provisioningState")))
        if state in _GONE:
            raise ServiceError(
                f"training_service.compute_target: compute '{config.compute_target}' can't run jobs: Azure calls it "
                f"{state}; choose another"
            )
        if config.environment is not None and not config.environment.startswith(_REGISTRY):
            self._named(
                _version_of(config.environment),
                f"environment: workspace '{config.workspace_name}' has no environment '{config.environment}'",
            )
        self._look()

    def _give(self, run: Run) -> None:
        place = f"/jobs/{run.name}"
        answer = self._ask("PUT", place, body={"properties": self._job(run)}, accepted=(400, 409))
        if answer.code // 100 == 2:
            self._shaped(answer, "properties", dict)
        elif self._job_of(run.name) is None:  # else it was submitted before
            self._refuse(answer)

    def _look(self) -> Mapping[str, Seen]:
        """Return the jobs with the root's tag; while some may run, these, and not all that have ended.

        Those that Azure's list does not have, for it may lag, are asked for by name.
        """
        prefix = name_prefix(self._root)
        runs = (self._records.run(job_id) for job_id in self._records.taken())
        wanted = {run.name for run in runs if run is not None}
        seen: dict[str, Seen] = {}
        asked: dict[str, str | int] = {"tag": self._tag, "listViewType": "All"}
        for _ in range(_RECENT if wanted else _PAGES):
            page = self._shaped(self._ask("GET", "/jobs", params=asked), "value", list)
            for job in page["value"]:
                if isinstance(job, dict) and str(job.get("name")).startswith(prefix):
                    seen[str(job["name"])] = _seen(job)
            if not page.get("nextLink") or (wanted and wanted <= seen.keys()):
                break
            # only its query: the token goes to no other host
            asked = {key: value for key, value in parse_qsl(urlsplit(str(page["nextLink"])).query) if key != _API}
        for name in wanted - seen.keys():
            if (job := self._job_of(name)) is not None:
                seen[name] = _seen(job)
        return seen

    def _withdraw(self, names: Sequence[str]) -> None:
        for name in names:
            answer = self._ask("POST", f"/jobs/{name}/cancel", accepted=(400, 404, 409))
            if answer.code in (400, 409):  # as for one that has ended
                job = self._job_of(name)
                if job is not None and not _seen(job).status.finished:
                    self._refuse(answer)

    def _job(self, run: Run) -> dict[str, Any]:
        """Return the properties of a command job."""
        config = self._config
        line = self._line(run)
        if _TEMPLATE in line:
            raise ServiceError(
                f"training_service: Azure ML can't run commands with '{_TEMPLATE}' in a path: {self._root}"
            )
        job: dict[str, Any] = {
            "jobType": "Command",
            "displayName": run.name,
            "experimentName": config.experiment_name,
            "command": line,
            "computeId": f"{self._place}/computes/{config.compute_target}",
            "environmentId": self._environment(),
            "tags": {self._tag: run.job_id},
        }
        if config.instance_type is not None:
            job["resources"] = {"instanceType": config.instance_type}
        return merged(job, config.extra)

    def _environment(self) -> str:
        """Return the id of the environment, which is made if there is only an image."""
        config = self._config
        if config.environment is not None:
            known = config.environment.startswith(_REGISTRY)
            return config.environment if known else f"{self._place}{_version_of(config.environment)}"
        place = f"/environments/{_OF_AN_IMAGE}/versions/{hashlib.sha256(str(config.image).encode()).hexdigest()[:40]}"
        self._ask("PUT", place, body={"properties": {"image": config.image, "isAnonymous": True}}, accepted=(409,))
        return f"{self._place}{place}"

    def _job_of(self, name: str) -> Mapping[str, Any] | None:
        answer = self._ask("GET", f"/jobs/{name}", accepted=(404,))
        return None if answer.code == 404 else self._shaped(answer, "properties", dict)

    def _named(self, path: str, missing: str) -> Mapping[str, Any]:
        """Return the properties of what is at a path; raise ServiceError if there is nothing."""
        answer = self._ask("GET", path, accepted=(404,))
        if answer.code == 404:
            said = self._connected().shown(answer)
            raise ServiceError(f"training_service.{missing}; change what is wrong (HTTP 404: {said})")
        properties: Mapping[str, Any] = self._shaped(answer, "properties", dict)["properties"]
        return properties

    def _shaped(self, answer: Answer, key: str, kind: type) -> dict[str, Any]:
        """Return the mapping of an answer, which has a value of this kind at a key."""
        found: dict[str, Any] = self._connected().json_of(answer)
        if not isinstance(found.get(key), kind):
            said = self._connected().shown(answer)
            raise ClusterSilentError(f"training_service.url: Azure ML does not answer as it should: {said}")
        return found

    def _ask(self, method: str, path: str, *, accepted: Sequence[int] = (), **what: Any) -> Answer:
        """Return an answer of success, or with one of the accepted codes.

        Raises:
            ClusterSilentError: no answer.
            ServiceError: Azure ML refuses the request.
        """
        params = {**what.pop("params", {}), _API: _VERSION}
        answer = self._connected().ask(method, f"{self._place}{path}", params=params, **what)
        if answer.code // 100 != 2 and answer.code not in accepted:
            self._refuse(answer)
        return answer

    def _refuse(self, answer: Answer) -> NoReturn:
        config, said = self._config, self._connected().shown(answer)
        match answer.code:
            case 401:
                self._token.drop()
                what_to_do = (
                    "training_service.token: Azure does not take it, it may have expired; renew it, or leave it out "
                    "and sign in by `az login`"
                )
            case 403:
                what_to_do = (
                    f"training_service.workspace_name: this account may not run jobs in '{config.workspace_name}'; "
                    "ask for its role AzureML Data Scientist"
                )
            case 404:
                what_to_do = (
                    f"training_service.workspace_name: Azure knows no workspace '{config.workspace_name}' in resource "
                    f"group '{config.resource_group}' of subscription {config.subscription_id}, or not what its jobs "
                    "name; change these keys"
                )
            case code if code // 100 == 3:
                what_to_do = f"training_service.url: {config.url} redirects elsewhere; give the URL it redirects to"
            case _:
                what_to_do = "training_service: Azure ML refuses such jobs; change what its answer names"
        raise ServiceError(f"{what_to_do} (HTTP {answer.code}: {said})")

    def _connected(self) -> HttpClient:
        token = self._token.text()
        if self._client is None or token != self._client_token:
            if self._client is not None:
                self._client.close()
            self._client = HttpClient(
                "Azure ML", self._config.url, headers={"Authorization": f"Bearer {token}"}, tls=self._config.tls
            )
            self._client_token = token
        return self._client


def _version_of(environment: str) -> str:
    """Return the place of a workspace's environment, given as name:version."""
    name, _, version = environment.partition(":")
    return f"/environments/{name}/versions/{version}"


def _seen(job: Mapping[str, Any]) -> Seen:
    """Return the state of a job. One that is not known may have processes."""
    properties = job.get("properties")
    found = properties if isinstance(properties, dict) else {}
    status = one_line(str(found.get("status")))
    reason = f"Azure ML's job is {status}"
    if status in _WAITING:
        return Seen(JobStatus.PENDING, reason)
    if status == "Canceled":
        return Seen(JobStatus.LOST, f"{reason} there")
    if status in _ENDED:
        return Seen(JobStatus.EXITED, f"{reason}{_page(found)}")
    return Seen(JobStatus.RUNNING, reason)


def _page(properties: Mapping[str, Any]) -> str:
    """Return where Azure ML Studio shows a job, as the end of a sentence; it alone says why a job failed."""
    services = properties.get("services")
    studio = services.get("Studio") if isinstance(services, dict) else None
    endpoint = studio.get("endpoint") if isinstance(studio, dict) else None
    return f": {one_line(endpoint)[:300]}" if isinstance(endpoint, str) else ""
