"""Losses of several members at once, as vectors over the members."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from nasflow.evaluator.ready_made.pairs import IGNORED
from nasflow.evaluator.ready_made.supervised import REGRESSION_LOSSES
from nasflow.native import cross_entropies, cross_entropies_and_gradients

_HALF = (torch.bfloat16, torch.float16)
_VECTOR = 16
"""Float32 numbers in a processor's longest vector register."""


class ClassificationLosses:
    """Cross-entropies `[N]` of logits `[N, B, C]`, each member with its own label smoothing.

    Args:
        smoothing: one per member.
        weights: `[N, C]`, each member's own of the classes; none: all classes count the same.
    """

    def __init__(self, smoothing: Sequence[float], weights: Sequence[Sequence[float]] | None = None):
        self._weights = _Placed(weights) if weights else None
        self._classes = {len(own) for own in weights or []}
        self._smoothing = _Placed(smoothing) if any(smoothing) else None
        self._native = torch.tensor(smoothing, dtype=torch.float32)

    def fits(self, logits: Tensor, target: Tensor) -> bool:
        """Whether these are logits `[N, B, C]` and class numbers `[B]`."""
        if logits.ndim != 3 or self._classes - {logits.shape[2]}:
            return False
        return target.dtype is torch.long and target.shape == logits.shape[1:2]

    def __call__(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return the means over the samples."""
        members, samples, classes = logits.shape
        if logits.dtype in _HALF and torch.is_autocast_enabled(logits.device.type):
            logits = logits.float()  # as autocast does for torch's cross-entropy
        if self._weights is None and (found := cross_entropies(logits, target, self._native)) is not None:
            return found
        axis = 0 if classes < _VECTOR and logits.is_cpu else 2  # of the classes
        log_p = _first_dimension_log_softmax(logits) if axis == 0 else logits.log_softmax(2)
        # checking for ignored targets would synchronize with a GPU, so they are always expected there
        ignored = None if target.device.type == "cpu" and int(target.min()) >= 0 else target == IGNORED
        counted: int | Tensor = samples
        if ignored is not None:
            counted = samples - ignored.sum()
            target = target.masked_fill(ignored, 0)
            log_p = log_p.masked_fill(ignored.expand(members, samples).unsqueeze(axis), 0)
        own = log_p.gather(axis, target.expand(members, samples).unsqueeze(axis)).squeeze(axis)
        every = log_p.movedim(axis, 2) if self._smoothing else None
        if self._weights is not None:
            weights = self._weights.like(logits)
            of_samples = weights.index_select(1, target)
            if ignored is not None:
                of_samples = of_samples.masked_fill(ignored, 0)
            own, counted = own * of_samples, of_samples.sum(1)
            every = None if every is None else every * weights.unsqueeze(1)
        losses = own.sum(1).div(-counted)
        if self._smoothing is None or every is None:
            return losses
        smoothing = self._smoothing.like(logits)
        even = every.contiguous().sum((1, 2)).div(-counted).div(classes)
        # where: a class masked with -inf makes `even` infinite, which must not affect a member without smoothing
        return torch.where(smoothing > 0, (1 - smoothing) * losses + smoothing * even, losses)

    def with_gradients(self, logits: Tensor, target: Tensor) -> tuple[Tensor, Tensor] | None:
        """Return the means, and the gradients of their sum for the logits; None if only autograd can compute them."""
        return None if self._weights else cross_entropies_and_gradients(logits, target, self._native)


class _Placed:
    """Numbers of members, in the dtype and on the device of the last logits."""

    def __init__(self, numbers: Sequence[Any]):
        self._exact = torch.tensor(numbers, dtype=torch.float64)
        self._kept: Tensor | None = None

    def like(self, logits: Tensor) -> Tensor:
        kept = self._kept
        if kept is None or (kept.device, kept.dtype) != (logits.device, logits.dtype):
            with torch.inference_mode(False):  # or autograd refuses what validation made
                self._kept = kept = self._exact.to(logits)
        return kept


def _first_dimension_log_softmax(logits: Tensor) -> Tensor:
    """Return the log-softmax `[C, N, B]` of logits `[N, B, C]`.

    With few classes, torch is several times as fast if they are not the last dimension. Samples are padded to whole
    vector registers, because torch may round a remainder differently, and which samples are in it depends on the
    members.
    """
    samples = logits.shape[1]
    whole = F.pad(logits, (0, 0, 0, -samples % _VECTOR)) if samples % _VECTOR else logits
    return whole.movedim(2, 0).contiguous().log_softmax(0)[:, :, :samples]


class RegressionLosses:
    """Losses `[N]` of predictions `[N, B, ...]`, members with the same loss together."""

    def __init__(self, names: Sequence[str]):
        self._rows = {name: [row for row, own in enumerate(names) if own == name] for name in dict.fromkeys(names)}
        order = [row for rows in self._rows.values() for row in rows]
        self._places = sorted(range(len(order)), key=order.__getitem__)
        self._cached: dict[torch.device, tuple[list[Tensor], Tensor]] = {}

    def fits(self, outputs: Tensor, target: Tensor) -> bool:
        """Whether each member's predictions have the shape of the targets."""
        return outputs.shape[1:] == target.shape

    def __call__(self, outputs: Tensor, target: Tensor) -> Tensor:
        """Return the means over the samples and their values."""
        if len(self._rows) == 1:
            [name] = self._rows
            return _means_of(REGRESSION_LOSSES[name], outputs, target)
        parts, places = self._indices(outputs.device)
        losses = [
            _means_of(REGRESSION_LOSSES[name], outputs.index_select(0, rows), target)
            for name, rows in zip(self._rows, parts, strict=True)
        ]
        return torch.cat(losses).index_select(0, places)

    def _indices(self, device: torch.device) -> tuple[list[Tensor], Tensor]:
        if device not in self._cached:
            with torch.inference_mode(False):  # or autograd refuses what validation made
                parts = [torch.tensor(rows, device=device) for rows in self._rows.values()]
                self._cached[device] = parts, torch.tensor(self._places, device=device)
        return self._cached[device]


def _means_of(loss: Callable[..., Tensor], outputs: Tensor, target: Tensor) -> Tensor:
    return loss(outputs, target.expand_as(outputs), reduction="none").flatten(1).mean(1)
