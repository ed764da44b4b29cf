"""Runs jobs on OpenPAI through its REST API, version 2: each is a job of one task, in the job protocol, version 2."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import yaml

from nasflow.clean_text import one_line
from nasflow.config.services.hosted.openpai import OpenpaiServiceConfig
from nasflow.errors import ServiceError
from nasflow.training_service.base import JobStatus
from nasflow.training_service.cluster.runs import Run, name_prefix
from nasflow.training_service.cluster.seen import Seen
from nasflow.training_service.hosted.base import HostedService, merged
from nasflow.training_service.hosted.http_client import Answer, HttpClient, header_secret, unknown_words
from nasflow.training_service.local.service import RUNNER

_PAGE = 1000  # jobs in an answer
_ROLE, _IMAGE = "job", "image"
_OUT_OF_MEMORY = -1200  # the exit code for a container that the kernel killed (k8s-job-exit-spec.yaml)
_ENDED = {"SUCCEEDED", "FAILED"}
_TEMPLATE = "<%"  # begins a reference in the job protocol


class OpenpaiService(HostedService):
    """Runs each job as an OpenPAI job of that name, which is unique for its user. OpenPAI refuses a second one.

    Args:
        config: where the cluster is, and what each job takes.
        root: the folder of the study's jobs and checkpoints.
        runner: `module:function` that runs one `job.json` and returns an exit code.
    """

    kind = "openpai"
    passes_secrets = True

    def __init__(self, config: OpenpaiServiceConfig, root: Path, runner: str = RUNNER):
        super().__init__(config, root, runner)
        self._config = config
        self._client: HttpClient | None = None

    def validate(self) -> None:  # noqa: D102
        super().validate()
        answer = self._ask("GET", "/virtual-clusters")
        known = self._connected().json_of(answer)
        if self._config.virtual_cluster not in known:
            raise ServiceError(
                f"training_service.virtual_cluster: OpenPAI has no virtual cluster '{self._config.virtual_cluster}' "
                f"for this user, but {unknown_words(list(known))}"
            )
        self._look()

    def _give(self, run: Run) -> None:
        job = yaml.safe_dump(self._job(run), sort_keys=False, allow_unicode=True)
        answer = self._ask("POST", "/jobs", text=job, content_type="text/yaml", accepted=(409,))
        if answer.code == 409 and _code(answer) != "ConflictJobError":
            raise ServiceError(f"training_service: OpenPAI refuses such jobs: {self._connected().shown(answer)}")

    def _look(self) -> Mapping[str, Seen]:
        prefix = name_prefix(self._root)
        asked = {"username": self._config.user, "keyword": prefix, "order": "submissionTime,DESC", "limit": _PAGE}
        seen: dict[str, Seen] = {}
        for offset in range(0, 100 * _PAGE, _PAGE):
            jobs = self._connected().json_of(self._ask("GET", "/jobs", params={**asked, "offset": offset}), list)
            for job in jobs:
                if isinstance(job, dict) and str(job.get("name")).startswith(prefix):
                    seen[str(job["name"])] = _seen(job)
            if len(jobs) < _PAGE:
                break
        return seen

    def _withdraw(self, names: Sequence[str]) -> None:
        for name in names:
            place = f"/jobs/{quote(self._config.user, safe='')}~{name}/executionType"
            self._ask("PUT", place, body={"value": "STOP"}, accepted=(404,))

    def _job(self, run: Run) -> dict[str, Any]:
        """Return a run in the job protocol."""
        config = self._config
        line = self._line(run)
        if _TEMPLATE in line:
            raise ServiceError(
                f"training_service: OpenPAI can't run commands with '{_TEMPLATE}' in a path: {self._root}"
            )
        secrets = self._secret_environment()  # not on a command line: `export` is no program
        exports = [f"export {name}={_TEMPLATE} $secrets.{name} %>" for name in secrets]
        job: dict[str, Any] = {
            "protocolVersion": 2,
            "name": run.name,
            "type": "job",
            "jobRetryCount": 0,
            "prerequisites": [{"type": "dockerimage", "name": _IMAGE, "uri": config.image}],
            "taskRoles": {
                _ROLE: {
                    "instances": 1,
                    "completion": {"minFailedInstances": 1, "minSucceededInstances": 1},
                    "taskRetryCount": 0,
                    "dockerImage": _IMAGE,
                    "resourcePerInstance": {
                        "cpu": config.cpus_per_job,
                        "memoryMB": round(config.memory_gb * 1024),
                        "gpu": config.gpus_per_job,
                    },
                    "commands": [" && ".join([*exports, line])],
                }
            },
            "defaults": {"virtualCluster": config.virtual_cluster},
        }
        if secrets:
            job["secrets"] = {name: shlex.quote(value) for name, value in secrets.items()}
        if config.sku is not None:
            job["extras"] = {"hivedScheduler": {"taskRoles": {_ROLE: {"skuType": config.sku}}}}
        return merged(job, config.extra)

    def _ask(self, method: str, path: str, *, accepted: Sequence[int] = (), **what: Any) -> Answer:
        """Return an answer of success, or with one of the accepted codes.

        Raises:
            ClusterSilentError: no answer.
            ServiceError: OpenPAI refuses the request.
        """
        client = self._connected()
        answer = client.ask(method, f"/api/v2{path}", **what)
        if answer.code // 100 == 2 or answer.code in accepted:
            return answer
        said = client.shown(answer)
        config = self._config
        match answer.code:
            case 401:
                self._client = None  # so that a new token is read
                what_to_do = (
                    f"training_service.token: OpenPAI does not take it, it may have expired; create an application "
                    f"token on the profile page of '{config.user}'"
                )
            case 403:
                what_to_do = (
                    f"training_service.virtual_cluster: user '{config.user}' may not use '{config.virtual_cluster}' "
                    "or a storage of training_service.extra; choose others, or ask the cluster's administrator"
                )
            case 404:
                what_to_do = (
                    f"training_service.url: there is no OpenPAI REST server, version 2, at {config.url}; "
                    "most have it below /rest-server"
                )
            case code if code // 100 == 3:
                what_to_do = f"training_service.url: {config.url} redirects elsewhere; give the URL it redirects to"
            case _:
                what_to_do = "training_service: OpenPAI refuses such jobs; change what its answer names"
        raise ServiceError(f"{what_to_do} (HTTP {answer.code}: {said})")

    def _connected(self) -> HttpClient:
        if self._client is None:
            token = header_secret(self._config.token, "training_service.token")
            self._client = HttpClient(
                "OpenPAI", self._config.url, headers={"Authorization": f"Bearer {token}"}, tls=self._config.tls
            )
        return self._client


def _seen(job: Mapping[str, Any]) -> Seen:
    """Return the state of a job in OpenPAI's list. One that is not known yet may have processes."""
    state, code = one_line(str(job.get("state"))), job.get("appExitCode")
    ran = job.get("launchedTime") is not None
    if state == "WAITING":
        return Seen(JobStatus.PENDING, "OpenPAI's job waits for resources")
    if state == "STOPPED":
        return Seen(JobStatus.LOST, "OpenPAI's job was stopped there", ran=ran)
    if state not in _ENDED:
        return Seen(JobStatus.RUNNING, f"OpenPAI's job is {state}")
    if code == _OUT_OF_MEMORY:
        return Seen(JobStatus.EXITED, "OpenPAI ended the job: it ran out of memory", out_of_memory=True)
    if isinstance(code, int) and -10_000 < code < 0:  # the platform's own codes
        return Seen(JobStatus.LOST, f"OpenPAI's job {state} with its code {code}, a failure of the cluster", ran=ran)
    return Seen(JobStatus.EXITED, f"OpenPAI's job {state} with exit code {one_line(str(code))}", ran=ran)


def _code(answer: Answer) -> str:
    try:
        found = answer.json()
    except ValueError:
        return ""
    return str(found.get("code")) if isinstance(found, dict) else ""
