"""The `merge` section: how trials share jobs."""

from typing import Literal

from pydantic import Field, PositiveInt

from nasflow.config.values import Section


class MergeConfig(Section):
    """How trials share jobs. `enabled: false` trains each trial in a separate job."""

    enabled: bool = Field(default=True, description="false trains each trial in a separate job")
    max_members: PositiveInt = Field(default=16, description="trials of a job that train at a time")
    jobs_per_slot: PositiveInt = Field(
        default=1,
        description="jobs that a round makes for each slot; of more, smaller ones fast hosts take more",
    )
    fuse: Literal["measured", "always", "never"] = Field(
        default="measured",
        description="run equal operations of several members as one kernel: where that was measured to be faster",
    )
    verify: Literal["start", "epoch", "never"] = Field(
        default="start",
        description="compare fused trials with their own models before the first step; `epoch`: also one of each unit "
        "at the beginning of every epoch",
    )
    cuda_graphs: bool = Field(
        default=False,
        description="on a GPU, replay steps as CUDA graphs where they draw no random numbers, but for nn.Dropout's; no "
        "card has run this yet (docs/devices.md)",
    )
    passes: list[str] = Field(default=[], description="import paths of passes over the logical plan (docs/merging.md)")
