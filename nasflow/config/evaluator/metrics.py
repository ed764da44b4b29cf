"""What a trial is measured by, in training and in validation."""

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, PositiveInt, Tag, model_validator

from nasflow.config.values import Section, searched_tag

Direction = Literal["minimize", "maximize"]
"""Which way a metric is better."""


def to_loss(value: float, direction: Direction) -> float:
    """Return `value` with the sign that makes lower better: negated if it is to be maximized."""
    return -value if direction == "maximize" else value


class MetricConfig(Section):
    """A torchmetrics metric by import path, or a shortcut for one."""

    name: str = Field(pattern=r"^[a-z][a-z0-9_]*$", description="it is logged as val_<name>")
    target: str | None = Field(
        default=None, description="a torchmetrics class, as package.module:Name or file.py:Name relative to the config"
    )
    params: dict[str, Any] = Field(default={}, description="keyword arguments; num_classes is known")
    top_k: PositiveInt | None = Field(
        default=None,
        title="Top k",
        description="instead of a class: the share of samples whose class is among the k most likely",
    )

    @model_validator(mode="after")
    def _one_kind(self) -> "MetricConfig":
        if (self.target is None) == (self.top_k is None):
            raise ValueError("give one of target and top_k")
        if self.name == "loss":
            raise ValueError("'val_loss' is logged anyway; give the metric another name")
        if any(searched_tag(value) != "value" for value in self.params.values()):
            raise ValueError("the params of a metric can't be searched, because trials are compared by it")
        return self


def metric_name(metric: str | MetricConfig) -> str:
    """Return the name under which a metric is logged, without val_."""
    return metric if isinstance(metric, str) else metric.name


def _metric_tag(value: Any) -> str:
    return "value" if isinstance(value, str) else "MetricConfig"


def named_once(metrics: list[Any]) -> list[Any]:
    """Return the metrics. Raises ValueError if two have the same name."""
    names = [metric_name(metric) for metric in metrics]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ValueError(f"two metrics are named '{twice[0]}'")
    return metrics


_OwnMetric = Annotated[MetricConfig, Field(title="By import path"), Tag("MetricConfig")]


ClassificationMetric = Annotated[
    Annotated[Literal["accuracy", "f1", "precision", "recall", "auroc"], Field(title="By name"), Tag("value")]
    | _OwnMetric,
    Discriminator(_metric_tag),
]
"""Metrics of `kind: classification`, by name or by import path."""


RegressionMetric = Annotated[
    Annotated[Literal["mse", "rmse", "mae", "r2"], Field(title="By name"), Tag("value")] | _OwnMetric,
    Discriminator(_metric_tag),
]
"""Metrics of `kind: regression`, by name or by import path."""
