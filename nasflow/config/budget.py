"""The `budget` section: when a search ends."""

from typing import Literal

from pydantic import Field, PositiveFloat, PositiveInt

from nasflow.config.values import Section


class Budget(Section):
    """The search ends at the first limit it meets."""

    rounds: PositiveInt = Field(default=3, description="sampling rounds")
    trials_per_round: PositiveInt = Field(default=16, description="architectures that a round tries")
    trials: PositiveInt | None = Field(
        default=None, description="of all rounds together, repeated architectures among them"
    )
    hours: PositiveFloat | None = Field(default=None, description="of rounds")
    on_timeout: Literal["finish", "stop"] = Field(
        default="finish",
        description="after `hours`: finish the present round, or stop its jobs; a larger `hours` goes on with them",
    )
