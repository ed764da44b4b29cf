"""Runs jobs on Alibaba Cloud's PAI-DLC through its SDK."""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from alibabacloud_pai_dlc20201203.client import Client
from alibabacloud_pai_dlc20201203.models import CreateJobRequest, ListJobsRequest
from alibabacloud_tea_openapi.models import Config

from nasflow.clean_text import one_line
from nasflow.config.secret.secret_url import MASK
from nasflow.config.services.hosted.dlc import DlcServiceConfig
from nasflow.errors import ServiceError
from nasflow.training_service.base import JobStatus
from nasflow.training_service.cluster.base import ClusterSilentError
from nasflow.training_service.cluster.runs import Run, name_prefix
from nasflow.training_service.cluster.seen import Seen
from nasflow.training_service.hosted.base import HostedService, merged
from nasflow.training_service.hosted.http_client import header_secret
from nasflow.training_service.local.service import RUNNER

T = TypeVar("T")

_ANSWERS_WITHIN = 30_000  # milliseconds
_PAGE = 100  # jobs in an answer
_YEAR = 365 * 86400.0  # without a begin, a list has the jobs of some days
_BUSY = {408, 425, 429}
_WAITING = {"Creating", "Queuing", "Bidding", "EnvPreparing", "SanityChecking"}
_ENDED = {"Succeeded", "Failed", "SucceededReserving", "FailedReserving"}


class DlcService(HostedService):
    """Runs each job as a DLC job of that name. DLC takes a name twice; only one of both runs begins.

    Args:
        config: the account, the workspace, and what each job takes.
        root: the folder of the study's jobs and checkpoints.
        runner: `module:function` that runs one `job.json` and returns an exit code.
    """

    kind = "dlc"

    def __init__(self, config: DlcServiceConfig, root: Path, runner: str = RUNNER):
        super().__init__(config, root, runner)
        self._config = config
        self._client: Client | None = None
        self._secrets: tuple[str, ...] = ()
        self._ids: dict[str, list[str]] = {}  # by the name of the run, of those that have not ended

    def validate(self) -> None:  # noqa: D102
        super().validate()
        self._look()

    def _give(self, run: Run) -> None:
        request = CreateJobRequest().from_map(merged(self._job(run), self._config.extra))
        self._ask(lambda client: client.create_job(request))

    def _look(self) -> Mapping[str, Seen]:
        prefix = name_prefix(self._root)
        begin = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - _YEAR))
        seen: dict[str, Seen] = {}
        ids: dict[str, list[str]] = {}
        for page in range(1, 1000):
            request = ListJobsRequest(
                workspace_id=self._config.workspace_id,
                display_name=prefix,
                start_time=begin,
                page_number=page,
                page_size=_PAGE,
                sort_by="GmtCreateTime",
                order="desc",
            )
            jobs = self._listed(request)
            for job in jobs:
                name = str(job.display_name)
                if name.startswith(prefix):
                    state = _seen(job)
                    if name not in seen or seen[name].status.finished:  # a name that was submitted twice
                        seen[name] = state
                    if not state.status.finished:
                        ids.setdefault(name, []).append(str(job.job_id))
            if len(jobs) < _PAGE:
                break
        self._ids = ids
        return seen

    def _withdraw(self, names: Sequence[str]) -> None:
        for job_id in [job_id for name in names for job_id in self._ids.get(name, [])]:
            self._stop(job_id)

    def _stop(self, job_id: str) -> None:
        self._ask(lambda client: client.stop_job(job_id), gone_is_well=True)

    def _listed(self, request: ListJobsRequest) -> Sequence[Any]:
        body = self._ask(lambda client: client.list_jobs(request)).body
        if body is None or body.request_id is None:  # which all of its answers have
            raise ClusterSilentError("training_service: PAI-DLC answers with something else than a list of jobs")
        return list(body.jobs or ())

    def _job(self, run: Run) -> dict[str, Any]:
        """Return a run as CreateJob takes it."""
        config = self._config
        task: dict[str, Any] = {"Type": "Worker", "PodCount": 1, "Image": config.image}
        if config.ecs_spec is not None:
            task["EcsSpec"] = config.ecs_spec
        else:
            task["ResourceConfig"] = {
                "CPU": str(config.cpus_per_job),
                "Memory": f"{config.memory_gb:g}Gi",
                **({"GPU": str(config.gpus_per_job)} if config.gpus_per_job else {}),
            }
        job: dict[str, Any] = {
            "DisplayName": run.name,
            "JobType": config.job_type,
            "WorkspaceId": config.workspace_id,
            "JobSpecs": [task],
            "UserCommand": self._line(run),
        }
        return job | ({} if config.resource_id is None else {"ResourceId": config.resource_id})

    def _ask(self, what: Callable[[Client], T], *, gone_is_well: bool = False) -> T | Any:
        """Return the answer to a request; None if what it names is gone, and that is well.

        Raises:
            ClusterSilentError: no answer.
            ServiceError: DLC refuses the request.
        """
        client = self._connected()
        try:
            return what(client)
        except Exception as error:
            code = getattr(error, "status_code", None)
            cause = str(error).rpartition("(Caused by ")[2]  # all of it, unless a connection failed
            said = self._hidden(f"{getattr(error, 'code', None) or type(error).__name__}: {cause}")
            if not isinstance(code, int) or not 400 <= code < 500 or code in _BUSY:
                raise ClusterSilentError(
                    f"training_service: PAI-DLC in {self._config.region} does not answer as it should: {said}"
                ) from None
            if code == 404 and gone_is_well:
                return None
            raise ServiceError(f"{self._what_to_do(code)} (HTTP {code}: {said})") from None

    def _what_to_do(self, code: int) -> str:
        match code:
            case 401 | 403:
                self._client = None  # so that new keys are read
                return (
                    "training_service.access_key_secret: PAI-DLC does not take these access keys, or they may not use "
                    f"workspace {self._config.workspace_id}; renew them, or ask for a role of developer in it"
                )
            case 404:
                return (
                    f"training_service.workspace_id: PAI-DLC knows no workspace {self._config.workspace_id} in "
                    f"{self._config.region}; change workspace_id or region"
                )
        return "training_service: PAI-DLC refuses such jobs; change what its answer names"

    def _connected(self) -> Client:
        if self._client is None:
            config = self._config
            keys = {
                name: header_secret(getattr(config, name), f"training_service.{name}")
                for name in ("access_key_id", "access_key_secret")
            }
            self._secrets = tuple(keys.values())
            where = {}
            if config.endpoint is not None:
                where["protocol"], _, where["endpoint"] = config.endpoint.partition("://")
            self._client = Client(
                Config(
                    **keys,
                    **where,
                    region_id=config.region,
                    connect_timeout=_ANSWERS_WITHIN,
                    read_timeout=_ANSWERS_WITHIN,
                )
            )
        return self._client

    def _hidden(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, MASK)
        return one_line(" ".join(text.split())[:300])


def _seen(job: Any) -> Seen:
    """Return the state of a job in DLC's list. One that is not known may have processes."""
    status = str(job.status)
    why = one_line(f"{job.reason_code or ''} {job.reason_message or ''}".strip())
    reason = f"DLC's job is {status}{': ' * bool(why)}{why}"
    if status in _WAITING:
        return Seen(JobStatus.PENDING, reason)
    if status == "Stopped":
        return Seen(JobStatus.LOST, reason)
    if status in _ENDED:
        return Seen(JobStatus.EXITED, reason, out_of_memory="OOMKilled" in why)  # Kubernetes' word
    return Seen(JobStatus.RUNNING, reason)
