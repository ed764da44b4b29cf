"""The section of the SSH service, and of one of its hosts."""

import math
from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, field_validator, model_validator

from nasflow.config.secret.secrets import Secret
from nasflow.config.services.common import CodeConfig, GpuIndices, JobCount, WorkersConfig
from nasflow.config.values import Section


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
    address: str | None = Field(
        default=None,
        min_length=1,
        description="at which the other hosts reach it, for trials on several nodes; default: that by which it is "
        "reached from here",
    )
    python: str = Field(
        default="python3", min_length=1, description="the interpreter that has torch and nasflow's dependencies"
    )
    env_setup: str | None = Field(
        default=None, description="shell commands that make 'python' ready, as 'source ~/venv/bin/activate'"
    )
    work_dir: str = Field(default="~/.nasflow", description="a folder on the host, made if it is missing")
    slots: JobCount | None = Field(default=None, description="CPU slots; default: GPUs, or half the cores")
    gpu_indices: GpuIndices | None = Field(default=None, description="default: every GPU of the host")
    max_trials_per_gpu: JobCount = Field(default=1, description="jobs that share a GPU")
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

    @property
    def devices(self) -> float:
        """How many devices a job can take there at most, where their number is given."""
        return self.slots or (math.inf if self.gpu_indices is None else len(self.gpu_indices))


class SshServiceConfig(WorkersConfig):
    """Hosts reached by SSH, each with its own warm workers; none needs a way back to the controller."""

    kind: Literal["ssh"] = Field(default="ssh", description="hosts reached by SSH")
    hosts: list[SshHostConfig] = Field(min_length=1, description="where jobs run")
    known_hosts: str = Field(default="~/.ssh/known_hosts", description="the hosts' keys; others are refused")
    ssh_config: str = Field(
        default="~/.ssh/config",
        title="OpenSSH configuration",
        description="OpenSSH client configuration; need not exist",
    )
    devices_per_job: JobCount = Field(
        default=1, description="GPUs, or CPU slots, of a host that a job takes and spreads its trials over"
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
    code: CodeConfig = Field(default=CodeConfig(), description="what is shipped of the code beside the config")

    @field_validator("hosts")
    @classmethod
    def _hosts_once(cls, hosts: list[SshHostConfig]) -> list[SshHostConfig]:
        names = [host.name for host in hosts]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise ValueError(f"'{twice}' is listed twice; give one entry more slots instead")
        return hosts

    @model_validator(mode="after")
    def _enough_devices(self) -> "SshServiceConfig":
        for host in self.hosts:
            if host.devices < self.devices_per_job:
                key = "gpu_indices" if host.slots is None else "slots"
                raise ValueError(
                    f"a job takes {self.devices_per_job} devices ('devices_per_job'), and '{host.name}' has "
                    f"{host.devices}; give it less, or that host more '{key}'"
                )
        return self

    @property
    def devices(self) -> float:
        """How many devices a job can take on every host, where their numbers are given."""
        return min(host.devices for host in self.hosts)

    @property
    def devices_key(self) -> str:
        """Which key says how many there are."""
        return "hosts"
