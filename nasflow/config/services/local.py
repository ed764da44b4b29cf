"""The section of the local service."""

import math
from typing import Literal

from pydantic import Field, model_validator

from nasflow.config.services.common import GpuIndices, JobCount, WorkersConfig


class LocalServiceConfig(WorkersConfig):
    """This machine: one warm worker a slot. Slots share the CPU cores, or are `slots_per_gpu` to each of `gpus`."""

    kind: Literal["local"] = Field(default="local", description="this machine")
    slots: JobCount | None = Field(default=None, description="CPU slots; default: half the cores, at least one")
    gpus: GpuIndices = Field(
        default=[], description="indices of the GPUs to use; left out: the CPU, also where there are GPUs"
    )
    slots_per_gpu: JobCount = Field(default=1, description="jobs that share a GPU")
    devices_per_job: JobCount = Field(
        default=1, description="GPUs, or CPU slots, that a job takes and spreads its trials over"
    )
    use_active_gpu: bool = Field(
        default=True, description="use GPUs on which others compute; false: a slot waits while its GPU is in use"
    )

    @model_validator(mode="after")
    def _slots_or_gpus(self) -> "LocalServiceConfig":
        if self.slots is not None and self.gpus:
            raise ValueError("give either 'slots' (CPU) or 'gpus' with 'slots_per_gpu', not both")
        if self.devices < self.devices_per_job:
            raise ValueError(
                f"a job takes {self.devices_per_job} devices ('devices_per_job'), and there are {self.devices}; give "
                f"it less, or more '{self.devices_key}'"
            )
        return self

    @property
    def devices(self) -> float:
        """How many devices a job can take at most: of the CPU, its slots, where their number is given."""
        return len(self.gpus) or self.slots or math.inf

    @property
    def devices_key(self) -> str:
        """Which key says how many there are."""
        return "gpus" if self.gpus else "slots"
