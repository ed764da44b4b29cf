"""Runs jobs on DLTS (DLWorkspace) through the web API of its dashboard."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from nasflow.clean_text import one_line
from nasflow.config.services.hosted.dlts import DltsServiceConfig
from nasflow.errors import ServiceError
from nasflow.training_service.base import JobStatus
from nasflow.training_service.cluster.base import ClusterSilentError
from nasflow.training_service.cluster.runs import Run, name_prefix
from nasflow.training_service.cluster.seen import Seen
from nasflow.training_service.hosted.base import HostedService, merged
from nasflow.training_service.hosted.http_client import Answer, HttpClient, header_secret, unknown_words
from nasflow.training_service.local.service import RUNNER

_LISTED = 10_000  # jobs; without a limit, a list has ten
_WAITING = {"unapproved", "queued", "scheduling"}
_ENDED = {"finished", "failed", "error"}
_LOST = {"killed", "paused"}


class DltsService(HostedService):
    """Runs each job as a DLTS job of that name. DLTS takes a name twice; only one of both runs begins.

    Args:
        config: where the cluster is, and what each job takes.
        root: the folder of the study's jobs and checkpoints.
        runner: `module:function` that runs one `job.json` and returns an exit code.
    """

    kind = "dlts"

    def __init__(self, config: DltsServiceConfig, root: Path, runner: str = RUNNER):
        super().__init__(config, root, runner)
        self._config = config
        self._client: HttpClient | None = None
        self._gpu_type = config.gpu_type
        self._ids: dict[str, list[str]] = {}  # by the name of the run, of those that may not have ended

    def validate(self) -> None:  # noqa: D102
        super().validate()
        known = self._gpu_types()
        if self._config.gpu_type is not None and self._config.gpu_type not in known:
            raise ServiceError(
                f"training_service.gpu_type: team '{self._config.team}' has no '{self._config.gpu_type}', "
                f"but {unknown_words(known)}"
            )
        self._look()

    def _give(self, run: Run) -> None:
        config = self._config
        if self._gpu_type is None:
            self._gpu_type = next(iter(self._gpu_types()), "")
        job = {
            "team": config.team,
            "vcName": config.team,
            "userName": config.email,
            "jobName": run.name,
            "jobType": "training",
            "jobtrainingtype": "RegularJob",
            "gpuType": self._gpu_type,
            "resourcegpu": config.gpus_per_job,
            "image": config.image,
            "cmd": self._line(run),
            "interactivePorts": False,
            "ssh": False,
            "workPath": "",
            "enableworkpath": True,
            "jobPath": "",
            "enablejobpath": True,
            "dataPath": "",
            "mountpoints": [],
            "env": [],
            "hostNetwork": False,
            "isPrivileged": False,
            "preemptionAllowed": "False",
        }
        answer = self._ask("POST", f"{self._place()}/jobs", body=merged(job, config.extra))
        said = _twice_json(answer)
        if not isinstance(said, dict) or not ({"jobId", "error"} & set(said)):
            raise ClusterSilentError(f"training_service.url: DLTS answers what it should not: {self._shown(answer)}")
        if "jobId" not in said:  # with HTTP 200
            raise ServiceError(
                f"training_service: DLTS refuses such jobs; change what its answer names, or ask for a larger quota "
                f"({self._shown(answer)})"
            )

    def _look(self) -> Mapping[str, Seen]:
        prefix = name_prefix(self._root)
        place = (
            f"/api/v2/clusters/{quote(self._config.cluster, safe='')}/teams/{quote(self._config.team, safe='')}/jobs"
        )
        jobs = self._connected().json_of(self._ask("GET", place, params={"limit": _LISTED}), list)
        seen: dict[str, Seen] = {}
        ids: dict[str, list[str]] = {}
        for job in jobs:
            name = str(job.get("jobName")) if isinstance(job, dict) else ""
            if not name.startswith(prefix):
                continue
            state = _seen(job)
            if name not in seen or seen[name].status.finished:  # a name that was submitted twice
                seen[name] = state
            if not state.status.finished or job.get("jobStatus") == "paused":
                ids.setdefault(name, []).append(str(job.get("jobId")))
        self._ids = ids
        return seen

    def _withdraw(self, names: Sequence[str]) -> None:
        for job_id in [job_id for name in names for job_id in self._ids.get(name, [])]:
            place = f"{self._place()}/jobs/{quote(job_id, safe='')}/status"
            self._ask("PUT", place, body={"status": "killing"}, accepted=(404,))  # "can't kill" comes with HTTP 200

    def _gpu_types(self) -> list[str]:
        """Return the kinds of GPUs that the team has on the cluster."""
        team = quote(self._config.team, safe="")
        answer = self._ask("GET", f"/api/teams/{team}/clusters/{quote(self._config.cluster, safe='')}")
        metadata = self._connected().json_of(answer).get("metadata")
        try:
            found = json.loads(metadata) if isinstance(metadata, str) else metadata
        except (ValueError, RecursionError):
            found = None
        return [str(name) for name in found] if isinstance(found, dict) else []

    def _place(self) -> str:
        return f"/api/clusters/{quote(self._config.cluster, safe='')}"

    def _ask(self, method: str, path: str, *, accepted: Sequence[int] = (), **what: Any) -> Answer:
        """Return an answer of success, or with one of the accepted codes.

        Raises:
            ClusterSilentError: no answer.
            ServiceError: DLTS refuses the request.
        """
        client, config = self._connected(), self._config
        answer = client.ask(method, path, **what)
        if answer.code // 100 == 2 or answer.code in accepted:
            return answer
        match answer.code:
            case 401 | 403:
                self._client = None  # so that a new password is read
                what_to_do = (
                    f"training_service.password: DLTS does not take it for '{config.email}', or that user is not in "
                    f"team '{config.team}'; copy both from the dashboard's page on access by programs"
                )
            case 404:
                what_to_do = (
                    f"training_service.cluster: the dashboard at {config.url} knows no cluster '{config.cluster}' "
                    f"with a team '{config.team}'; change url, cluster or team"
                )
            case code if code // 100 == 3:
                what_to_do = f"training_service.url: {config.url} redirects elsewhere; give the URL it redirects to"
            case _:
                what_to_do = "training_service: DLTS refuses such jobs; change what its answer names"
        raise ServiceError(f"{what_to_do} (HTTP {answer.code}: {client.shown(answer)})")

    def _connected(self) -> HttpClient:
        if self._client is None:
            password = header_secret(self._config.password, "training_service.password")
            who = {"email": self._config.email, "password": password, "token": password}  # `token`: its former name
            self._client = HttpClient("DLTS", self._config.url, params=who, tls=self._config.tls)
        return self._client

    def _shown(self, answer: Answer) -> str:
        return self._connected().shown(answer)


def _seen(job: Mapping[str, Any]) -> Seen:
    """Return the state of a job in DLTS's list. One that is not known may have processes."""
    status = one_line(str(job.get("jobStatus")))
    if status in _WAITING:
        return Seen(JobStatus.PENDING, f"DLTS's job is {status}")
    if status in _LOST:
        return Seen(JobStatus.LOST, f"DLTS's job was {status} there")
    if status in _ENDED:
        detail = one_line(str(job.get("errorMsg") or ""))
        return Seen(JobStatus.EXITED, f"DLTS's job ended as {status}{': ' * bool(detail)}{detail}")
    return Seen(JobStatus.RUNNING, f"DLTS's job is {status}")


def _twice_json(answer: Answer) -> Any:
    """Return what the backend answered, which the dashboard may pass on as text."""
    try:
        value = answer.json()
        return json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError):
        return None
