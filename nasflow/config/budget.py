"""The `budget` section: when a search ends."""

from typing import Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt

from nasflow.config.values import Section


class Budget(Section):
    """The search ends at the first limit it meets."""

    rounds: PositiveInt = Field(default=3, description="sampling rounds")
    trials_per_round: PositiveInt = Field(default=16, description="architectures that a round tries")
    trials: PositiveInt | None = Field(
        default=None, description="of all rounds together, repeated architectures among them"
    )
    hours: PositiveFloat | None = Field(default=None, description="of rounds")
    rounds_ahead: NonNegativeInt = Field(
        default=0,
        description="rounds that may begin before the earlier ones have ended; the proposals of a round don't know the "
        "results of so many rounds before it",
    )
    on_timeout: Literal["finish", "stop"] = Field(
        default="finish",
        description="after `hours`: finish the present round, or stop its jobs; a larger `hours` goes on with them",
    )
