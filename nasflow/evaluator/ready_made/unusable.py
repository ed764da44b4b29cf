"""Data that no model can be trained on by a ready-made evaluator."""

from typing import Any

import torch

from nasflow.config.evaluator.metrics import MetricConfig
from nasflow.config.evaluator.supervised import ClassificationConfig, RegressionConfig
from nasflow.config.evaluator.target import Target
from nasflow.errors import DataError
from nasflow.evaluator.ready_made.pairs import (
    IGNORED,
    kind_of,
    no_numbers,
    no_targets,
    why_no_classes,
    why_no_pair,
)


def refuse_data(config: Any, batch: Any, *, validating: bool = False) -> None:
    """Raise DataError for a batch that no model can be trained or scored on, whatever its outputs are.

    Args:
        config: of a candidate, or with searched values. Data of other than the ready-made evaluators may be anything.
        validating: whether the batch is one of validation data.
    """
    why = None
    if isinstance(config, ClassificationConfig | RegressionConfig) and not (why := why_no_pair(batch, config.kind)):
        _, target = batch
        if isinstance(config, RegressionConfig):
            why = _why_no_numbers(config, target)
        else:
            why = _why_no_classes(config, target, validating)
    if why:
        raise DataError(why)


def _why_no_classes(config: ClassificationConfig, target: Any, validating: bool) -> str | None:
    if not isinstance(config.loss, Target) and (why := _why_no_labels(target, validating)):
        return why
    named = [metric for metric in config.metrics if isinstance(metric, str) or _is_top_k(metric)]
    if validating and named and isinstance(target, torch.Tensor):
        first = named[0]
        return why_no_classes(target, first if isinstance(first, str) else first.name)
    return None


def _is_top_k(metric: MetricConfig) -> bool:
    return metric.top_k is not None


def _why_no_labels(target: Any, validating: bool) -> str | None:
    """Return what is wrong with targets of cross-entropy.

    Args:
        validating: whether outputs must be logits `[B, C]`. In training, a model may give some for each place.
    """
    if not isinstance(target, torch.Tensor):
        return no_targets(f"a {type(target).__name__}")
    if target.is_floating_point():
        are_shares = target.ndim > 1 and target.shape[1] > 1
        return None if are_shares else no_targets(kind_of(target))
    if target.dtype not in (torch.long, torch.uint8) or (validating and target.ndim != 1):
        return no_targets(kind_of(target))
    counted = target[target != IGNORED]
    if counted.numel() and (least := int(counted.min())) < 0:
        return f"evaluator.data: its loader gives the class number {least}; let the numbers of classes begin with 0"
    return None


def _why_no_numbers(config: RegressionConfig, target: Any) -> str | None:
    if isinstance(config.loss, Target):
        return None
    if not isinstance(target, torch.Tensor) or target.is_complex():
        return no_numbers(kind_of(target) if isinstance(target, torch.Tensor) else f"a {type(target).__name__}")
    if target.is_floating_point() and not target.isfinite().all():
        return "evaluator.data: its loader gives targets that are not finite (nan or inf); leave such samples out"
    return None
