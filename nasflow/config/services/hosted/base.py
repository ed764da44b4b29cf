"""What the sections of hosted services have in common."""

from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlsplit

from pydantic import Field, PositiveFloat, PositiveInt, field_validator

from nasflow.config.durations import Duration
from nasflow.config.secret.secret_url import without_passwords
from nasflow.config.services.common import DAY, JobCount
from nasflow.config.services.storage import StoredConfig


class HostedConfig(StoredConfig):
    """What a job takes of a hosted service, and how it is started there."""

    own: ClassVar[tuple[str, ...]] = ()
    """What `extra` can't replace, because no job would be found, or none would train: paths of keys."""

    max_jobs: JobCount = Field(default=8, description="jobs submitted at a time")
    cpus_per_job: PositiveInt = Field(default=1, description="cores of a job")
    gpus_per_job: int = Field(default=0, ge=0, description="GPUs of a job")
    memory_gb: PositiveFloat = Field(default=8.0, description="memory of a job")
    python: str = Field(default="python3", min_length=1, description="interpreter in the image")
    poll_seconds: PositiveFloat = Field(default=10.0, description="between two looks at the service")
    abandoned_after: Duration = Field(
        default=7 * DAY, description="without a controller, after which a job ends itself"
    )

    @field_validator("extra", check_fields=False)
    @classmethod
    def _leaves_own(cls, extra: dict[str, Any]) -> dict[str, Any]:
        for path in cls.own:
            value: Any = extra
            parts = path.split(".")
            for depth, part in enumerate(parts):
                if not isinstance(value, dict):
                    raise ValueError(f"'{'.'.join(parts[:depth])}' should be a mapping")
                if part not in value:
                    break
                value = value[part]
            else:
                raise ValueError(f"'{path}' is nasflow's own; leave it out")
        return extra


class WebServiceConfig(HostedConfig):
    """How a hosted service with its own web API is reached."""

    verify_tls: bool = Field(
        default=True, title="Verify TLS", description="false: accept any certificate; only in a private network"
    )
    ca_file: Path | None = Field(
        default=None, title="CA file", description="certificates to trust; default: those known to Python"
    )

    @property
    def tls(self) -> bool | Path:
        """How the service's certificate is checked: not at all (false), by this file, or as usual."""
        return self.ca_file if self.verify_tls and self.ca_file is not None else self.verify_tls

    @field_validator("url", check_fields=False)
    @classmethod
    def _is_plain(cls, url: str) -> str:
        if not url.startswith(("http://", "https://")):
            raise ValueError("begins with neither https:// nor http://")
        if "@" in url or "?" in url or "#" in url or without_passwords(url) != url:
            raise ValueError("has more than a host, a port and a path; secrets have keys of their own")
        try:
            parts = urlsplit(url)
            usable = bool(parts.hostname) and parts.port != 0 and url.isprintable() and " " not in url
        except ValueError:  # of a port, or of brackets
            usable = False
        if not usable:
            raise ValueError("has no host, or a port or characters that can't be; give one such as https://host:443")
        return url.rstrip("/")
