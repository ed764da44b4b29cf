"""The `retry` section: how often failed work is tried again, and when."""

from typing import Annotated

from pydantic import Field

from nasflow.config.values import Section


class RetryConfig(Section):
    """How often failed work is tried again, and after which delays in seconds (the last one repeats)."""

    batch: int = Field(default=3, ge=0, description="restarts of a batch that was lost to its infrastructure")
    alone: int = Field(default=2, ge=0, description="retries of a failed trial on its own")
    delay_seconds: list[Annotated[float, Field(ge=0)]] = Field(
        default=[1.0, 5.0, 15.0], min_length=1, max_length=50, description="before each retry; the last one repeats"
    )
