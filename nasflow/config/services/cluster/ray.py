"""The section of the Ray service."""

import re
from typing import Literal

from pydantic import Field, PositiveFloat, field_validator

from nasflow.config.durations import Duration
from nasflow.config.secret.secret_url import SecretUrl
from nasflow.config.secret.secrets import Secret, SecretLocation
from nasflow.config.services.common import DAY, JobCount
from nasflow.config.services.storage import ClusterConfig

_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # a token of RFC 9110
_OF_HTTP = {"connection", "content-length", "content-type", "host", "transfer-encoding"}


class RayServiceConfig(ClusterConfig):
    """A Ray cluster, reached by its Jobs API. Where its nodes find files: `storage`."""

    kind: Literal["ray"] = Field(default="ray", description="a Ray cluster")
    address: SecretLocation = Field(
        default=SecretUrl("http://127.0.0.1:8265"),
        description="of the cluster's dashboard; one with a password may be {env: NAME} or {prefect_block: NAME}",
    )
    headers: dict[str, Secret] = Field(
        default={},
        title="HTTP headers",
        description="of each request, as {Authorization: {env: NAME}} or {Cookie: {env: NAME}}",
    )
    max_jobs: JobCount = Field(default=8, description="jobs submitted at a time")
    cpus_per_job: PositiveFloat = Field(default=1.0, description="cores of a job")
    gpus_per_job: float = Field(default=0.0, ge=0, description="GPUs of a job")
    abandoned_after: Duration = Field(
        default=7 * DAY, description="without a controller, after which a job on a node ends itself"
    )

    @field_validator("gpus_per_job")
    @classmethod
    def _part_or_whole(cls, gpus: float) -> float:
        if gpus > 1 and gpus != int(gpus):
            raise ValueError("Ray gives a part of one GPU, or whole ones")
        return gpus

    @field_validator("headers")
    @classmethod
    def _headers_of_http(cls, headers: dict[str, Secret]) -> dict[str, Secret]:
        for name in headers:
            if _HEADER.fullmatch(name) is None or name.lower() in _OF_HTTP:
                raise ValueError(
                    f"{name!r} can't be given: it is no name of an HTTP header, or one that HTTP itself sets"
                )
        return headers
