"""The `recurring` section: what each run of a deployment does with the study."""

from typing import Literal

from pydantic import Field, PositiveInt

from nasflow.config.values import Section


class RecurringConfig(Section):
    """What each run of a deployment does with the study. A run that no deployment starts resumes the study."""

    study: Literal["new", "continue", "warm_start"] = Field(
        default="new",
        description="new: a new study, named by date and time; continue: the study of the name goes on, and the "
        "budget counts for each run; warm_start: new, and it begins with the best architectures of the earlier ones",
    )
    best: PositiveInt = Field(
        default=8, description="how many architectures a warm start takes from the earlier studies"
    )
