"""One large candidate over several devices of a machine."""

from typing import Literal

from pydantic import Field, field_validator

from nasflow.config.values import Section


class ParallelConfig(Section):
    """Each trial, or each large one, is trained by several processes at once, one for each device, in a job of its own.

    A batch is divided among them, so `batch_size` is that of all together and needs no other learning rate.
    """

    strategy: Literal["ddp", "fsdp"] = Field(
        default="ddp",
        description="ddp: each device has the whole model; fsdp: each has a part of the weights and of the optimizer",
    )
    devices: int = Field(ge=2, le=1024, description="GPUs of a trial; on the CPU, processes that share its threads")
    min_parameters: int = Field(
        default=0, ge=0, description="trials with fewer are merged instead, spread over the same devices"
    )
    nodes: int = Field(default=1, ge=1, description="machines of a trial; only one so far")

    @field_validator("nodes")
    @classmethod
    def _one_machine(cls, nodes: int) -> int:
        if nodes > 1:
            raise ValueError("a trial can't have several machines yet; leave 'nodes' out, and give the devices of one")
        return nodes
