"""The `storage` section of the services for clusters: where files are, if nodes don't see the study's folder."""

from pathlib import PurePosixPath
from typing import Annotated, Any, Self

from pydantic import Discriminator, Field, PositiveFloat, PrivateAttr, Tag, field_validator

from nasflow.config.durations import Duration
from nasflow.config.secret.secret_url import SecretUrl, check_folder_url, is_secret_key
from nasflow.config.secret.secrets import BlockSecret, EnvironmentSecret, SecretLocation, SecretText
from nasflow.config.services.common import CodeConfig, ProcessesConfig
from nasflow.config.values import Section

_DEEPEST = 8
_SECRET = {"key", "sas", "connection_string", "pkey"}  # what fsspec's file systems call them besides `is_secret_key`


class SharedFolderConfig(Section):
    """A folder that nodes see under another path than this machine."""

    local: str = Field(description="path of the shared folder here; work_dir is in it")
    remote: str = Field(description="path of the same folder on the nodes")

    @field_validator("local", "remote")
    @classmethod
    def _absolute(cls, path: str) -> str:
        if not PurePosixPath(path).is_absolute() or ".." in PurePosixPath(path).parts:
            raise ValueError(f"'{path}' is no absolute path; give one such as /mnt/nas")
        return path


class ObjectStoreConfig(Section):
    """An object store, or any other storage that fsspec knows, which nodes and this machine reach."""

    url: SecretLocation = Field(
        description="a folder there, as s3://bucket/folder; one with a password may be {env: NAME} or "
        "{prefect_block: NAME}"
    )
    options: dict[str, Any] = Field(
        default={},
        description="storage_options of fsspec; a secret among them is {env: NAME}, {prefect_block: NAME}, or the text "
        "itself, which is not put on record",
    )
    python: str = Field(
        default="python3",
        min_length=1,
        description="interpreter on the nodes of slurm and ray, which has nasflow installed; dask has the worker's own",
    )
    scratch: str | None = Field(default=None, description="folder on the nodes' own disks; default: $TMPDIR, or /tmp")
    poll_seconds: PositiveFloat = Field(default=5.0, description="between two looks of the search at the storage")
    look_seconds: PositiveFloat = Field(
        default=15.0, description="between two looks of a job at whether it is asked to end"
    )
    retry_for: Duration = Field(
        default=900.0, description="for which a job whose training is over tries to reach a storage that is away"
    )
    max_gigabytes: PositiveFloat = Field(
        default=20.0, description="a job may send at a time, such as all checkpoints of an epoch; more is refused"
    )
    code: CodeConfig = Field(default=CodeConfig(), description="what is shipped of the code beside the config")

    @field_validator("url")
    @classmethod
    def _usable(cls, url: SecretLocation) -> SecretLocation:
        if isinstance(url, SecretUrl):
            check_storage_url(url.get_secret_value())
        return url

    @field_validator("scratch")
    @classmethod
    def _absolute(cls, path: str | None) -> str | None:
        if path is not None and not PurePosixPath(path).is_absolute():
            raise ValueError(f"'{path}' is no absolute path; give one such as /local")
        return path

    @field_validator("options")
    @classmethod
    def _with_secrets(cls, options: dict[str, Any]) -> dict[str, Any]:
        return {key: _option(key, value, 1) for key, value in options.items()}


def check_storage_url(url: str) -> None:
    """Raise ValueError if a URL can't be that of a folder which this machine and the nodes reach."""
    check_folder_url(url)
    if url.startswith("memory://"):
        raise ValueError("memory:// is in the memory of one process, which jobs do not see; give a storage they reach")


def _option(key: str, value: Any, depth: int) -> Any:
    """Return an option with the secrets in it as such."""
    if depth > _DEEPEST:
        raise ValueError(f"'{key}' is nested more than {_DEEPEST} deep")
    match value:
        case {"env": str()} if len(value) == 1:
            return EnvironmentSecret.model_validate(value)
        case {"prefect_block": str()} if len(value) == 1:
            return BlockSecret.model_validate(value)
        case dict():
            return {name: _option(str(name), item, depth + 1) for name, item in value.items()}
        case list() | tuple():
            return [_option(key, item, depth + 1) for item in value]
        case str() if is_secret_key(key) or key in _SECRET:
            return SecretText(value)
        case str() | int() | float() | None | SecretText() | EnvironmentSecret() | BlockSecret():
            return value
    raise ValueError(f"'{key}' is of type {type(value).__name__}; give text, numbers, lists and mappings")


def _tag(value: Any) -> str:
    """Return the member of the union that a value is meant as, so that an error names only that one."""
    if isinstance(value, SharedFolderConfig) or (isinstance(value, dict) and {"local", "remote"} & value.keys()):
        return "SharedFolderConfig"
    return "ObjectStoreConfig"


StorageConfig = Annotated[
    Annotated[SharedFolderConfig, Tag("SharedFolderConfig")] | Annotated[ObjectStoreConfig, Tag("ObjectStoreConfig")],
    Discriminator(_tag),
]
"""A shared folder under another path (`local`, `remote`) or an object store (`url`)."""


class StoredConfig(Section):
    """What all services have in common whose machines may not see the study's folder."""

    storage: StorageConfig | None = Field(
        default=None, description="where files are; default: nodes see work_dir and the code under the same path"
    )


class ClusterConfig(StoredConfig, ProcessesConfig):
    """What the services for clusters have in common."""

    _most_nodes: int = PrivateAttr(default=1)

    @property
    def most_nodes(self) -> int:
        """The most machines of a job, by `evaluator.parallel.nodes`; it is not a key."""
        return self._most_nodes

    def with_most_nodes(self, nodes: int) -> Self:
        """Return a copy for jobs with so many machines at most."""
        copy = self.model_copy()
        copy._most_nodes = nodes
        return copy
