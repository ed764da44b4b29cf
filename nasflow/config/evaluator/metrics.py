"""What a trial is measured by, in training and in validation."""

import re
from typing import Annotated, Any, Literal, Self

from pydantic import Discriminator, Field, ModelWrapValidatorHandler, PositiveInt, Tag, model_validator

from nasflow.config.values import Section, searched_tag

Direction = Literal["minimize", "maximize"]
"""Which way a metric is better."""


def to_loss(value: float, direction: Direction) -> float:
    """Return `value` with the sign that makes lower better: negated if it is to be maximized."""
    return -value if direction == "maximize" else value


_LOWER = re.compile(
    "loss|nll|errors?|err|mse|rmse|mae|mape|perplexity|ppl|wer|cer|eer|fid|"
    "parameters|params|bytes|latency|seconds|flops|macs"
)
_HIGHER = re.compile(
    "accuracy|acc|f1|precision|recall|auroc|auc|r2|iou|miou|dice|kappa|mcc|bleu|rouge|psnr|ssim|reward|throughput"
)
_TURNED = re.compile(
    "neg|negative|negated|minus|inverse|inv|reciprocal|one|brier|"
    "std|stdev|var|variance|gap|drop|diff|delta|spread|range|ratio"
)


def with_direction(values: Any) -> Any:
    """Return the values of a section, with the `direction` of a `metric` that is given without it, by its name.

    Raises:
        ValueError: the name does not say which way is better.
    """
    if not isinstance(values, dict) or "direction" in values or not isinstance(values.get("metric"), str):
        return values
    words = re.split(r"[^a-z0-9]+", values["metric"].lower())
    known = {"minimize": _LOWER, "maximize": _HIGHER}
    ways = [way for way, names in known.items() if any(map(names.fullmatch, words))]
    if len(ways) != 1 or any(map(_TURNED.fullmatch, words)):
        raise ValueError(f"say which way '{values['metric']}' is better: give 'direction', minimize or maximize")
    return {**values, "direction": ways[0]}


class Directed(Section):
    """A section with a `metric` and a `direction`, which may be left out where the metric's name says it."""

    @model_validator(mode="wrap")
    @classmethod
    def _by_name(cls, values: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        named = with_direction(values)
        made = handler(named)
        if named is not values:
            made.model_fields_set.discard("direction")  # a copy with another metric has the direction of its name
        return made


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
