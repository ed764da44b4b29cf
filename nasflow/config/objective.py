"""An item of `objectives`: a metric and which way is better."""

from typing import Any

from pydantic import Field, model_validator

from nasflow.config.evaluator.metrics import Direction, to_loss, with_direction
from nasflow.config.values import Section


class Objective(Section):
    """A final metric and which way is better."""

    metric: str = Field(default="val_accuracy", description="one that is logged after the last epoch, or parameters")
    direction: Direction = Field(default="maximize", description="which way is better; left out: by the metric's name")

    @model_validator(mode="before")
    @classmethod
    def _by_name(cls, values: Any) -> Any:
        return with_direction(values)

    def to_loss(self, value: float) -> float:
        """Return a value of the metric with the sign that makes lower better."""
        return to_loss(value, self.direction)
