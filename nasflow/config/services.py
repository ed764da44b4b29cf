"""The `training_service` section of the search config: where jobs run."""

from typing import Annotated, Any, Literal

from pydantic import Field, PositiveFloat, PositiveInt, field_validator, model_validator

from nasflow.config.durations import Duration
from nasflow.config.secret_url import SecretUrl
from nasflow.config.secrets import Secret, SecretLocation
from nasflow.config.values import Section

DAY = 86400.0
"""Seconds."""

_GpuIndices = list[Annotated[int, Field(ge=0)]]


class _ProcessesConfig(Section):
    """What the services have in common that start processes."""

    pass_env: list[str] = Field(
        default=[],
        title="Environment variables to pass",
        description="that jobs get although they may hold secrets of the controller, as [PGPASSWORD]",
    )


class LocalServiceConfig(_ProcessesConfig):
    """This machine: one warm worker a slot. Slots share the CPU cores, or are `slots_per_gpu` to each of `gpus`."""

    kind: Literal["local"] = Field(default="local", description="this machine")
    slots: PositiveInt | None = Field(default=None, description="CPU slots; default: half the cores, at least one")
    gpus: _GpuIndices = Field(default=[], description="indices of the GPUs to use; none: the CPU")
    slots_per_gpu: PositiveInt = Field(default=1, description="jobs that share a GPU")
    use_active_gpu: bool = Field(
        default=True, description="use GPUs on which others compute; false: a slot waits while its GPU is in use"
    )
    reuse: bool = Field(
        default=True, description="run jobs in forks of a warm worker; false: each in a separate program"
    )
    idle_timeout: PositiveFloat = Field(
        default=600.0, description="seconds without work after which an abandoned worker ends itself"
    )

    abandoned_after: Duration = Field(
        default=DAY, description="without a controller, after which a worker ends its job and itself"
    )

    @model_validator(mode="after")
    def _slots_or_gpus(self) -> "LocalServiceConfig":
        if self.slots is not None and self.gpus:
            raise ValueError("give either 'slots' (CPU) or 'gpus' with 'slots_per_gpu', not both")
        return self


class SshHostConfig(Section):
    """One host of the SSH service. What is left out comes from the user's OpenSSH client configuration."""

    host: str = Field(min_length=1, description="name, address, or a Host of the OpenSSH client configuration")
    port: Annotated[int, Field(ge=1, le=65535)] | None = Field(default=None, description="default: 22, or OpenSSH's")
    user: str | None = Field(default=None, description="default: OpenSSH's, or the user here")
    key_file: str | None = Field(default=None, description="private key; default: OpenSSH's IdentityFile")
    passphrase: Secret | None = Field(default=None, description="of the private key")
    password: Secret | None = Field(default=None, description="of the user, if no key does")
    agent: bool = Field(default=True, description="also offer the keys of a running ssh-agent")
    proxy_jump: str | None = Field(default=None, description="[user@]host[:port] to go through")
    python: str = Field(default="python3", description="the interpreter that has torch and nasflow's dependencies")
    env_setup: str | None = Field(
        default=None, description="shell commands that make 'python' ready, as 'source ~/venv/bin/activate'"
    )
    work_dir: str = Field(default="~/.nasflow", description="a folder on the host, made if it is missing")
    slots: PositiveInt | None = Field(default=None, description="CPU slots; default: GPUs, or half the cores")
    gpu_indices: _GpuIndices | None = Field(default=None, description="default: every GPU of the host")
    max_trials_per_gpu: PositiveInt = Field(default=1, description="jobs that share a GPU")
    use_active_gpu: bool = Field(default=False, description="use GPUs on which others compute")

    @model_validator(mode="after")
    def _slots_or_gpus(self) -> "SshHostConfig":
        if self.slots is not None and self.gpu_indices is not None:
            raise ValueError("give either 'slots' (CPU) or 'gpu_indices' with 'max_trials_per_gpu', not both")
        return self

    @property
    def name(self) -> str:
        """A name that is unique among the hosts."""
        return f"{self.host}:{self.port}" if self.port else self.host


class CodeConfig(Section):
    """What is shipped of the user's code: the config's folder but for what `.nasflowignore` names."""

    max_files: PositiveInt = Field(default=2000, description="more are refused")
    max_megabytes: PositiveFloat = Field(default=300.0, description="more are refused")


class SshServiceConfig(_ProcessesConfig):
    """Hosts reached by SSH, each with its own warm workers; none needs a way back to the controller."""

    kind: Literal["ssh"] = Field(default="ssh", description="hosts reached by SSH")
    hosts: list[SshHostConfig] = Field(min_length=1, description="where jobs run")
    known_hosts: str = Field(default="~/.ssh/known_hosts", description="the hosts' keys; others are refused")
    ssh_config: str = Field(
        default="~/.ssh/config",
        title="OpenSSH configuration",
        description="OpenSSH client configuration; need not exist",
    )
    connect_timeout: PositiveFloat = Field(default=10.0, description="seconds for a connection or an answer")
    lost_after: PositiveFloat = Field(
        default=300.0, description="seconds without an answer after which a host's jobs go on elsewhere"
    )
    hosts_required: Literal["all", "any"] = Field(
        default="all", description="which hosts must be in order when a search starts; 'any' leaves out the others"
    )
    nasflow: Literal["ship", "installed"] = Field(
        default="ship",
        title="nasflow",
        description="ship this nasflow to the hosts, or use the one installed there: the same version",
    )
    reuse: bool = Field(
        default=True, description="run jobs in forks of a warm worker; false: each in a separate program"
    )
    idle_timeout: PositiveFloat = Field(
        default=600.0, description="seconds without work after which an abandoned worker ends itself"
    )
    abandoned_after: Duration = Field(
        default=DAY, description="without a controller, after which a worker ends its job and itself"
    )
    code: CodeConfig = Field(default=CodeConfig(), description="what is shipped of the code beside the config")

    @field_validator("hosts")
    @classmethod
    def _hosts_once(cls, hosts: list[SshHostConfig]) -> list[SshHostConfig]:
        names = [host.name for host in hosts]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise ValueError(f"'{twice}' is listed twice; give one entry more slots instead")
        return hosts


class SlurmServiceConfig(_ProcessesConfig):
    """A Slurm cluster. Its client commands work here, and its nodes see `work_dir` and the code under the same path.

    What is left out is left to the cluster's defaults.
    """

    kind: Literal["slurm"] = Field(default="slurm", description="a Slurm cluster")
    max_jobs: PositiveInt = Field(default=8, description="jobs in Slurm's queue or running at a time")
    partition: str | None = Field(default=None, description="default: the cluster's")
    account: str | None = Field(default=None, description="default: the user's")
    time_limit: PositiveInt | None = Field(default=None, description="minutes a job may take")
    cpus_per_job: PositiveInt = Field(default=1, description="cores of a job")
    gpus_per_job: int = Field(default=0, ge=0, description="GPUs of a job")
    memory_gb: PositiveFloat | None = Field(default=None, description="of a job; default: the cluster's")
    options: list[str] = Field(default=[], description="more options of sbatch, as '--constraint=a100'")
    python: str | None = Field(default=None, description="interpreter on the nodes; default: this one")
    env_setup: str | None = Field(default=None, description="shell commands that make 'python' ready")
    poll_seconds: PositiveFloat = Field(default=2.0, description="between two looks at Slurm's queue")
    abandoned_after: Duration = Field(
        default=7 * DAY, description="without a controller, after which a job on a node ends itself"
    )


class RayServiceConfig(_ProcessesConfig):
    """A Ray cluster, reached by its Jobs API. Its nodes see `work_dir` and the code under the same path."""

    kind: Literal["ray"] = Field(default="ray", description="a Ray cluster")
    address: SecretLocation = Field(
        default=SecretUrl("http://127.0.0.1:8265"),
        description="of the cluster's dashboard; one with a password may be {env: NAME} or {prefect_block: NAME}",
    )
    max_jobs: PositiveInt = Field(default=8, description="jobs submitted at a time")
    cpus_per_job: PositiveFloat = Field(default=1.0, description="cores of a job")
    gpus_per_job: float = Field(default=0.0, ge=0, description="GPUs of a job")
    abandoned_after: Duration = Field(
        default=7 * DAY, description="without a controller, after which a job on a node ends itself"
    )


class DaskServiceConfig(_ProcessesConfig):
    """A Dask cluster. Its workers see `work_dir` and the code under the same path."""

    kind: Literal["dask"] = Field(default="dask", description="a Dask cluster")
    address: str = Field(default="tcp://127.0.0.1:8786", description="of the scheduler")
    max_jobs: PositiveInt = Field(default=8, description="jobs submitted at a time")
    resources: dict[str, float] = Field(default={}, description="what a job takes of a worker's, as {GPU: 1}")
    abandoned_after: Duration = Field(
        default=7 * DAY, description="without a controller, after which a job on a node ends itself"
    )


class DebugServiceConfig(Section):
    """This process: jobs run when they are submitted, one after the other. For tests, notebooks and breakpoints."""

    kind: Literal["debug"] = Field(default="debug", description="in this process")


class CustomServiceConfig(Section):
    """A user's `nasflow.training_service.base.TrainingService` subclass."""

    kind: Literal["custom"] = Field(default="custom", description="a TrainingService of yours")
    target: str = Field(description="package.module:Name, or file.py:Name relative to the config")
    params: dict[str, Any] = Field(default={}, description="keyword arguments of the class")


# if all keys of one kind are keys of another, a form takes the first
ServiceConfig = Annotated[
    DebugServiceConfig
    | LocalServiceConfig
    | SshServiceConfig
    | SlurmServiceConfig
    | RayServiceConfig
    | DaskServiceConfig
    | CustomServiceConfig,
    Field(discriminator="kind"),
]
"""The section of any training service, chosen by `kind`."""
