"""Evaluators whose training step is the user's."""

from typing import Any, Literal

from pydantic import Field

from nasflow.config.evaluator.target import Target
from nasflow.config.evaluator.training import TrainingConfig


class LightningConfig(TrainingConfig):
    """A user's LightningModule class, which takes `model` and holds it under any name; its params may be searched."""

    kind: Literal["lightning"] = Field(default="lightning", description="a LightningModule of yours")
    module: Target = Field(description="the class; it is built with `model` and the params")


class CustomEvaluatorConfig(TrainingConfig):
    """A user's `nasflow.evaluator.base.Evaluator` subclass."""

    kind: Literal["custom"] = Field(default="custom", description="an Evaluator of yours")
    target: str = Field(description="package.module:Name, or file.py:Name relative to the config")
    params: dict[str, Any] = Field(default={}, description="keyword arguments of the class")
