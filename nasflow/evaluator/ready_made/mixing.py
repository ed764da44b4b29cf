"""Batches whose samples are mixed with each other, as an augmentation for classification."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from nasflow.config.evaluator.supervised import ClassificationConfig
from nasflow.errors import TrialError


@dataclass(frozen=True)
class Mixed:
    """A batch of which each sample is mixed with another.

    Attributes:
        x: the mixed inputs `[B, ...]`.
        order: the number of each sample's other one.
        share: of a sample itself, in inputs and loss; the rest is the other's.
    """

    x: Tensor
    order: Tensor
    share: float

    def loss(self, loss: Callable[[Tensor, Tensor], Tensor], output: Tensor, target: Tensor) -> Tensor:
        """Return the loss for the targets of both, by their shares."""
        return self.share * loss(output, target) + (1 - self.share) * loss(output, target[self.order])


def mix(config: ClassificationConfig, x: Tensor) -> Mixed:
    """Return a batch mixed by mixup or cutmix; with both, by either as often. It draws from torch's global generator.

    Raises:
        TrialError: inputs of this kind can't be mixed.
    """
    by_cut = config.cutmix is not None and (config.mixup is None or bool(torch.rand(()) < 0.5))
    chosen = config.cutmix if by_cut else config.mixup
    assert chosen is not None  # noqa: S101 - for the type checker
    if not isinstance(x, Tensor) or not x.is_floating_point():
        kind = x.dtype if isinstance(x, Tensor) else f"a {type(x).__name__}"
        raise TrialError(f"evaluator.{'cutmix' if by_cut else 'mixup'}: inputs of {kind} can't be mixed")
    alpha = torch.tensor(float(chosen.alpha), dtype=torch.float64)  # type: ignore[arg-type]
    share = float(torch.distributions.Beta(alpha, alpha).sample())
    order = torch.randperm(len(x)).to(x.device)
    return _cut(x, order, share) if by_cut else Mixed(share * x + (1 - share) * x[order], order, share)


def _cut(x: Tensor, order: Tensor, share: float) -> Mixed:
    """Put a box of the other image into each image, as in CutMix (Yun et al. 2019)."""
    if x.ndim < 4:
        raise TrialError(f"evaluator.cutmix: needs images [B, C, H, W]; the batches have the shape {tuple(x.shape)}")
    sides = []
    for size in x.shape[-2:]:
        half, middle = int(size * math.sqrt(1 - share)) // 2, int(torch.randint(size, ()))
        sides.append((max(middle - half, 0), min(middle + half, size)))
    (top, bottom), (left, right) = sides
    cut = x.clone()
    cut[..., top:bottom, left:right] = x[order][..., top:bottom, left:right]
    return Mixed(cut, order, 1 - (bottom - top) * (right - left) / (x.shape[-2] * x.shape[-1]))
