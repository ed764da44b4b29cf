"""The ready-made evaluators."""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Discriminator, Field, Tag, model_validator

from nasflow.config.evaluator.metrics import (
    ClassificationMetric,
    MetricConfig,
    RegressionMetric,
    named_once,
)
from nasflow.config.evaluator.optimizer import OptimizerConfig
from nasflow.config.evaluator.schedule import ScheduleConfig
from nasflow.config.evaluator.target import Target
from nasflow.config.evaluator.training import TrainingConfig
from nasflow.config.values import Options, SearchedFloat, Section, searched_tag

RegressionLoss = Literal["mse", "mae", "huber"]
"""Losses of `kind: regression`."""


_OwnLoss = Annotated[Target, Field(title="By import path"), Tag("Target")]


def _loss_tag(value: Any) -> str:
    """Return the kind that a loss is meant as: by name, searched, or by import path."""
    is_target = isinstance(value, Target) or (isinstance(value, dict) and "target" in value)
    return "Target" if is_target else searched_tag(value)


def _plain_loss_tag(value: Any) -> str:
    return "Target" if _loss_tag(value) == "Target" else "value"


def _weights_tag(value: Any) -> str:
    return "str" if isinstance(value, str) else "list"


class SupervisedConfig(TrainingConfig):
    """What `classification` and `regression` share."""

    optimizer: OptimizerConfig = Field(default=OptimizerConfig(), description="what moves the weights")
    schedule: ScheduleConfig = Field(default=ScheduleConfig(), description="how the learning rate moves")


class MixConfig(Section):
    """How samples of a batch are mixed with each other in training."""

    alpha: SearchedFloat = Field(default=1.0, description="both parameters of the Beta distribution of their shares")

    @model_validator(mode="after")
    def _is_positive(self) -> "MixConfig":
        if isinstance(self.alpha, float) and self.alpha <= 0:
            raise ValueError("'alpha' should be above 0")
        return self


class ClassificationConfig(SupervisedConfig):
    """Logits `[B, C]` against class numbers `[B]`."""

    kind: Literal["classification"] = Field(default="classification", description="one of several classes a sample")
    loss: Annotated[
        Annotated[Literal["cross_entropy"], Field(title="By name"), Tag("value")] | _OwnLoss,
        Discriminator(_plain_loss_tag),
    ] = Field(default="cross_entropy", description="what training minimizes")
    label_smoothing: SearchedFloat = Field(default=0.0, description="share of probability spread over all classes")
    class_weights: (
        Annotated[
            Annotated[list[SearchedFloat], Field(min_length=2, title="By class"), Tag("list")]
            | Annotated[Literal["balanced"], Field(title="Balanced"), Tag("str")],
            Discriminator(_weights_tag),
        ]
        | None
    ) = Field(
        default=None,
        description="how much a sample of each class counts in the loss; balanced: the less, the more there are of it; "
        "none: all the same",
    )
    mixup: MixConfig | None = Field(default=None, description="train on weighted sums of two samples each")
    cutmix: MixConfig | None = Field(
        default=None, title="CutMix", description="train on images with a box of another one"
    )
    metrics: Annotated[list[ClassificationMetric], AfterValidator(named_once)] = Field(
        default=["accuracy"], description="logged as val_<name> after every epoch, beside val_loss"
    )

    @model_validator(mode="after")
    def _parts_of_cross_entropy(self) -> "ClassificationConfig":
        if isinstance(self.loss, Target) and self.label_smoothing != 0:
            raise ValueError("'label_smoothing' is of cross_entropy; a loss by import path takes its own in params")
        if isinstance(self.loss, Target) and self.class_weights is not None:
            raise ValueError("'class_weights' are of cross_entropy; a loss by import path takes its own in params")
        return self

    @model_validator(mode="after")
    def _weights_are_weights(self) -> "ClassificationConfig":
        weights = self.class_weights if isinstance(self.class_weights, list) else []
        plain = [weight for weight in weights if isinstance(weight, float)]
        if any(weight < 0 for weight in plain) or (len(plain) == len(weights) > 0 and not any(plain)):
            raise ValueError("'class_weights' should be numbers from 0 on, not all of them 0")
        return self


class RegressionConfig(SupervisedConfig):
    """Predictions `[B]` or `[B, T]` against targets of the same shape."""

    kind: Literal["regression"] = Field(default="regression", description="one or several numbers a sample")
    loss: Annotated[
        Annotated[RegressionLoss, Field(title="Value"), Tag("value")]
        | Annotated[Options[RegressionLoss], Field(title="Options"), Tag("pick")]
        | _OwnLoss,
        Discriminator(_loss_tag),
    ] = Field(default="mse", description="what training minimizes")
    metrics: Annotated[list[RegressionMetric], AfterValidator(named_once)] = Field(
        default=["rmse", "r2"], description="logged as val_<name> after every epoch, beside val_loss"
    )

    @model_validator(mode="after")
    def _no_top_k(self) -> "RegressionConfig":
        if any(isinstance(metric, MetricConfig) and metric.top_k is not None for metric in self.metrics):
            raise ValueError("'top_k' is of classification")
        return self
