"""What a ready-made evaluator says about batches and targets that it can't use."""

from collections.abc import Mapping
from typing import Any

import torch

from nasflow.errors import TrialError

IGNORED = -100
"""The class number that torch's cross-entropy ignores."""


def pair_of(batch: Any, kind: str) -> Any:
    """Return a batch that is a pair (inputs, targets). Raises TrialError for any other."""
    if isinstance(batch, tuple | list) and len(batch) == 2:
        return batch
    if isinstance(batch, Mapping):
        found = f"dicts with {', '.join(map(repr, batch)) or 'nothing'}"
    elif isinstance(batch, tuple | list):
        found = f"{type(batch).__name__}s of {len(batch)}"
    else:
        found = f"a {type(batch).__name__}" + (f" {tuple(batch.shape)}" if isinstance(batch, torch.Tensor) else "")
    raise TrialError(
        f"evaluator.data: 'kind: {kind}' takes batches (inputs, targets), and its loader gives {found}; let it give "
        "pairs, or take its batches by 'kind: lightning'"
    )


def class_numbers(target: torch.Tensor) -> torch.Tensor:
    """Return targets with bytes as torch.int64: `IGNORED` as a byte would be the number of a class."""
    return target.long() if target.dtype == torch.uint8 else target


def refuse_no_classes(target: torch.Tensor, metric: str) -> None:
    """Raise TrialError if targets are no class numbers `[B]`, which a metric by name needs."""
    if target.ndim != 1 or target.is_floating_point():
        raise TrialError(
            f"evaluator.metrics: '{metric}' needs class numbers [B] as targets, and the validation data give "
            f"{_kind_of(target)}; give class numbers there, or take metrics by import path ('metrics: []' for none)"
        )


def explained(error: Exception, output: torch.Tensor, target: Any) -> Exception:
    """Return a TrialError in place of what torch's cross-entropy raised, if the targets are the reason."""
    if not isinstance(target, torch.Tensor):
        return _wrong(f"a {type(target).__name__}")
    if output.ndim < 2 or len(output) != len(target):
        return error
    if target.is_floating_point():
        return error if target.shape == output.shape else _wrong(_kind_of(target))
    if target.dtype not in (torch.long, torch.uint8) or target.shape != (output.shape[0], *output.shape[2:]):
        return _wrong(_kind_of(target))
    classes, counted = output.shape[1], target[target != IGNORED]
    wrong = counted[(counted < 0) | (counted >= classes)]
    if not len(wrong):
        return error
    return TrialError(
        f"evaluator.data: {int(wrong[0])} is no class of the model, whose {classes} have the numbers 0 to {classes - 1}"
    )


def _wrong(found: str) -> TrialError:
    return TrialError(
        f"evaluator.data: 'kind: classification' takes class numbers [B] of torch.int64, or a share of each class "
        f"[B, C] of the outputs' type, as targets; its loader gives {found}"
    )


def _kind_of(target: torch.Tensor) -> str:
    return f"{tuple(target.shape)} of {target.dtype}"
