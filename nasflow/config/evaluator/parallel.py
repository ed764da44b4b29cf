"""One large candidate over several devices, of one machine or several."""

from typing import Literal

from pydantic import Field, model_validator

from nasflow.config.values import Section


class ParallelConfig(Section):
    """Each trial, or each large one, is trained by several processes at once, one for each device, in a job of its own.

    A batch is divided among them, so `batch_size` is that of all together and needs no other learning rate.
    """

    strategy: Literal["ddp", "fsdp"] = Field(
        default="ddp",
        description="ddp: each device has the whole model; fsdp: each has a part of the weights and of the optimizer",
    )
    devices: int = Field(
        ge=1,
        le=1024,
        description="GPUs of a trial on each machine; on the CPU, processes that share its threads",
    )
    min_parameters: int = Field(
        default=0,
        ge=0,
        description="trials with fewer are merged instead, as long as they do not run out of memory by themselves",
    )
    nodes: int = Field(
        default=1,
        ge=1,
        le=1024,
        description="machines of a trial; several need SSH hosts, Slurm, Kubernetes, Kubeflow or FrameworkController",
    )

    @property
    def ranks(self) -> int:
        """The number of processes, each with a device, on all machines."""
        return self.devices * self.nodes

    @model_validator(mode="after")
    def _several(self) -> "ParallelConfig":
        if self.ranks < 2:
            raise ValueError("one device is what a trial has anyway; leave 'parallel' out, or give more 'devices'")
        return self
