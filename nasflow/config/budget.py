"""The `budget` section: when a search ends."""

from pydantic import Field, PositiveFloat, PositiveInt

from nasflow.config.values import Section


class Budget(Section):
    """The search ends at the first limit it meets. No round starts after `hours` of rounds."""

    rounds: PositiveInt = Field(default=3, description="sampling rounds")
    trials_per_round: PositiveInt = Field(default=16, description="architectures that a round tries")
    trials: PositiveInt | None = Field(
        default=None, description="of all rounds together, repeated architectures among them"
    )
    hours: PositiveFloat | None = Field(default=None, description="of rounds, after which no new one starts")
