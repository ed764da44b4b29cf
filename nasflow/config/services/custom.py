"""The section of a training service of the user's own."""

from typing import Any, Literal

from pydantic import Field

from nasflow.config.values import Section


class CustomServiceConfig(Section):
    """A user's `nasflow.training_service.base.TrainingService` subclass."""

    kind: Literal["custom"] = Field(default="custom", description="a TrainingService of yours")
    target: str = Field(description="package.module:Name, or file.py:Name relative to the config")
    params: dict[str, Any] = Field(default={}, description="keyword arguments of the class")
