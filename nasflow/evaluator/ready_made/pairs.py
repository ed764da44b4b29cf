"""What a ready-made evaluator says about batches, targets and outputs that it can't use."""

from collections.abc import Mapping
from typing import Any

import torch

from nasflow.errors import TrialError

IGNORED = -100
"""The class number that torch's cross-entropy ignores."""


def pair_of(batch: Any, kind: str) -> Any:
    """Return a batch that is a pair (inputs, targets). Raises TrialError for any other."""
    if why := why_no_pair(batch, kind):
        raise TrialError(why)
    return batch


def why_no_pair(batch: Any, kind: str) -> str | None:
    """Return what is wrong with a batch that is no pair (inputs, targets); None for a pair."""
    if isinstance(batch, tuple | list) and len(batch) == 2:
        return None
    return (
        f"evaluator.data: 'kind: {kind}' takes batches (inputs, targets), and its loader gives {_several(batch)}; let "
        "it give pairs, or take its batches by 'kind: lightning'"
    )


def one_tensor(output: Any, kind: str) -> torch.Tensor:
    """Return a model's output. Raises TrialError if that is no tensor."""
    if isinstance(output, torch.Tensor):
        return output
    raise TrialError(
        f"the model gives {_one(output)}, and 'kind: {kind}' scores one tensor; let its forward return that tensor, or "
        "train it by 'kind: lightning'"
    )


def class_numbers(target: torch.Tensor) -> torch.Tensor:
    """Return targets with bytes as torch.int64: `IGNORED` as a byte would be the number of a class."""
    return target.long() if target.dtype == torch.uint8 else target


def refuse_no_logits(output: torch.Tensor, target: Any) -> None:
    """Raise TrialError for outputs that are no logits `[B, C]`; the message names the shape of the targets, too."""
    if output.ndim != 2 or output.shape[1] < 2:
        raise _no_logits(output, target)


def refuse_no_classes(target: torch.Tensor, metric: str) -> None:
    """Raise TrialError if targets are no class numbers `[B]`, which a metric by name needs."""
    if why := why_no_classes(target, metric):
        raise TrialError(why)


def why_no_classes(target: torch.Tensor, metric: str) -> str | None:
    """Return what is wrong with targets if they are no class numbers `[B]`, which a metric by name needs."""
    if target.ndim == 1 and not target.is_floating_point():
        return None
    return (
        f"evaluator.metrics: '{metric}' needs class numbers [B] as targets, and the validation data give "
        f"{kind_of(target)}; give class numbers there, or take metrics by import path ('metrics: []' for none)"
    )


def explained(error: Exception, output: torch.Tensor, target: Any) -> Exception:
    """Return a TrialError in place of what torch's cross-entropy raised, if outputs or targets are the reason."""
    if not isinstance(target, torch.Tensor):
        return TrialError(no_targets(f"a {type(target).__name__}"))
    if output.ndim < 2 or output.shape[:1] != target.shape[:1]:
        return _no_logits(output, target)
    if target.is_floating_point():
        if target.ndim < 2:
            return TrialError(no_targets(kind_of(target)))
        if target.shape == output.shape:
            return error
        if target.ndim != output.ndim or target.shape[2:] != output.shape[2:]:
            return _no_logits(output, target)
        return TrialError(
            f"evaluator.data: its loader gives shares of {target.shape[1]} classes, and the model tells "
            f"{output.shape[1]} apart: it gives {tuple(output.shape)} for targets {tuple(target.shape)}"
        )
    if target.dtype not in (torch.long, torch.uint8):
        return TrialError(no_targets(kind_of(target)))
    if target.shape != (output.shape[0], *output.shape[2:]):
        return TrialError(no_targets(kind_of(target))) if output.ndim == 2 else _no_logits(output, target)
    classes, counted = output.shape[1], target[target != IGNORED]
    wrong = counted[(counted < 0) | (counted >= classes)]
    if not len(wrong):
        return error
    return TrialError(
        f"evaluator.data: {int(wrong[0])} is no class of the model, which has {classes}, numbered 0 to "
        f"{classes - 1}: it gives {tuple(output.shape)} for targets {tuple(target.shape)}"
    )


def no_targets(found: str) -> str:
    """Return what is wrong with targets that are none of cross-entropy."""
    return (
        f"evaluator.data: 'kind: classification' takes class numbers [B] of torch.int64, or a share of each class "
        f"[B, C] of the outputs' type, as targets; its loader gives {found}"
    )


def no_numbers(found: str) -> str:
    """Return what is wrong with targets that are none of regression."""
    takes = "a tensor of numbers [B] or [B, T]"
    return f"evaluator.data: 'kind: regression' takes {takes} as targets; its loader gives {found}"


def kind_of(target: torch.Tensor) -> str:
    """Describe a tensor by its shape and type."""
    return f"{tuple(target.shape)} of {target.dtype}"


def _no_logits(output: torch.Tensor, target: Any) -> TrialError:
    shape = f" {tuple(target.shape)}" if isinstance(target, torch.Tensor) else ""
    return TrialError(
        f"classification needs logits [B, C] with C >= 2; the model gives {tuple(output.shape)} for targets{shape}; "
        "train it by 'kind: lightning' if that is meant"
    )


def _several(batch: Any) -> str:
    if isinstance(batch, Mapping):
        return f"dicts with {_keys(batch)}"
    if isinstance(batch, tuple | list):
        return f"{type(batch).__name__}s of {len(batch)}"
    return f"a {type(batch).__name__}" + (f" {tuple(batch.shape)}" if isinstance(batch, torch.Tensor) else "")


def _one(output: Any) -> str:
    if output is None:
        return "None"
    name = f"a {type(output).__name__}"
    if isinstance(output, Mapping):
        return f"{name} with {_keys(output)}"
    return f"{name} of {len(output)}" if isinstance(output, tuple | list) else name


def _keys(values: Mapping[Any, Any]) -> str:
    return ", ".join(map(repr, values)) or "nothing"
