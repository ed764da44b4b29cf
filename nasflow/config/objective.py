"""An item of `objectives`: a metric and which way is better."""

from pydantic import Field

from nasflow.config.evaluator.metrics import Directed, Direction, to_loss


class Objective(Directed):
    """A final metric and which way is better."""

    metric: str = Field(default="val_accuracy", description="one that is logged after the last epoch, or parameters")
    direction: Direction = Field(default="maximize", description="which way is better; left out: by the metric's name")

    def to_loss(self, value: float) -> float:
        """Return a value of the metric with the sign that makes lower better."""
        return to_loss(value, self.direction)
