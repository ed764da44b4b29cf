"""The `evaluator.schedule` section."""

from typing import Annotated, Literal

from pydantic import Field, Tag, model_validator

from nasflow.config.evaluator.metrics import Directed, Direction
from nasflow.config.values import OptionalInt, Options, SearchedFloat, SearchedInt, SearchedTags

ScheduleName = Literal["constant", "cosine", "step", "exponential", "linear", "polynomial", "one_cycle", "plateau"]
"""Learning-rate schedules."""


class ScheduleConfig(Directed):
    """How the learning rate changes after a linear warm-up, once an epoch or after every optimizer step."""

    name: Annotated[
        Annotated[ScheduleName, Field(title="Value"), Tag("value")]
        | Annotated[Options[ScheduleName], Field(title="Options"), Tag("pick")],
        SearchedTags,
    ] = Field(default="constant", description="its shape after the warm-up")
    interval: Literal["epoch", "step"] = Field(default="epoch", description="when the rate changes")
    warmup_epochs: SearchedInt = Field(default=0, description="epochs in which the rate rises to its first value")
    warmup_steps: SearchedInt = Field(default=0, description="steps of warm-up, besides its epochs (interval: step)")
    step_size: SearchedInt = Field(default=10, description="epochs, or steps by interval, between two drops (step)")
    gamma: SearchedFloat = Field(
        default=0.1, description="factor of a drop (step, plateau), or of an epoch or step (exponential)"
    )
    end_factor: SearchedFloat = Field(
        default=0.0, description="share of the first rate at the end (cosine, linear, polynomial, one_cycle, plateau)"
    )
    restart_epochs: OptionalInt = Field(default=None, description="epochs before the first restart (cosine)")
    restart_steps: OptionalInt = Field(default=None, description="the same in steps (cosine, interval: step)")
    restart_mult: SearchedInt = Field(default=1, description="how many times as long each next cycle is (cosine)")
    power: SearchedFloat = Field(default=1.0, description="of polynomial")
    rise: SearchedFloat = Field(default=0.3, description="share of the training in which the rate rises (one_cycle)")
    start_factor: SearchedFloat = Field(default=0.04, description="share of the rate at the begin (one_cycle)")
    metric: str = Field(default="val_loss", description="one that is logged in every epoch (plateau)")
    direction: Direction = Field(
        default="minimize", description="which way the metric is better; left out: by its name (plateau)"
    )
    patience: SearchedInt = Field(default=10, description="epochs without improvement that cause no drop (plateau)")

    @model_validator(mode="after")
    def _steps_by_step(self) -> "ScheduleConfig":
        names = self.name.pick if isinstance(self.name, Options) else [self.name]
        if self.interval == "step" and "plateau" in names:
            raise ValueError("'plateau' looks at a metric once an epoch; leave out 'interval: step'")
        if self.interval == "epoch" and (self.warmup_steps != 0 or self.restart_steps is not None):
            key = "restart_steps" if self.warmup_steps == 0 else "warmup_steps"
            raise ValueError(f"'{key}' needs 'interval: step'; else give {key.replace('steps', 'epochs')}")
        if self.restart_epochs is not None and self.restart_steps is not None:
            raise ValueError("give restart_epochs or restart_steps, not both")
        return self
