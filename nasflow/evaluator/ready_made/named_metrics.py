"""Metrics by name, where torchmetrics' own depend on batches, on the scale of targets, or on ignored labels."""

import torch
import torchmetrics
from torch import Tensor
from torchmetrics.classification import MulticlassAccuracy, MulticlassAUROC

from nasflow.errors import TrialError
from nasflow.evaluator.ready_made.pairs import IGNORED


class Accuracy(MulticlassAccuracy):
    """The share of samples whose class has the largest logit; those that are labelled `IGNORED` do not count.

    Unlike torchmetrics' `ignore_index`, it leaves them out without a read from the device.
    """

    tp: Tensor
    fp: Tensor
    fn: Tensor

    def __init__(self, num_classes: int):
        super().__init__(num_classes, average="micro", validate_args=False)

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Add logits `[B, C]` and class numbers `[B]`."""
        right = preds.argmax(1) == target  # which no ignored one is
        wrong = (~right & (target != IGNORED)).sum()
        self.tp, self.fp, self.fn = self.tp + right.sum(), self.fp + wrong, self.fn + wrong


class AUROC(MulticlassAUROC):
    """The area under the ROC curve of each class against the others, as an unweighted mean.

    torchmetrics takes a batch of logits that all lie within 0 and 1 for probabilities, and no other batch.
    """

    def __init__(self, num_classes: int):
        super().__init__(num_classes, validate_args=False, ignore_index=IGNORED)

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Add logits `[B, C]` and class numbers `[B]`."""
        dtype = torch.promote_types(preds.dtype, torch.float32)
        super().update(preds.softmax(-1, dtype=dtype), target)


class R2(torchmetrics.Metric):
    """The share of the targets' variance that predictions explain; a mean over the targets of a sample.

    All sums are in float64. torchmetrics' own takes small sums for zero, whatever the scale of the targets.
    """

    residual: Tensor  # [] or [T], as the sums of targets
    offset: Tensor  # the first target: by what targets are moved, so that their variance is exact
    sum: Tensor
    squares: Tensor
    samples: Tensor

    def __init__(self) -> None:
        super().__init__()
        for name in ("residual", "offset", "sum", "squares"):
            self.add_state(name, torch.zeros((), dtype=torch.float64), dist_reduce_fx=None)
        self.add_state("samples", torch.tensor(0), dist_reduce_fx=None)

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Add predictions and targets `[B]` or `[B, T]`.

        Raises:
            ValueError: they have more dimensions.
        """
        if target.ndim > 2:
            raise ValueError(f"Expected both prediction and target to be 1D or 2D tensors, but got {target.ndim}D")
        if not len(target):
            return
        offset = torch.where(self.samples > 0, self.offset, target[0].double())
        moved = target.double() - offset
        self.residual = self.residual + (preds - target).double().square().sum(0)
        self.offset, self.sum, self.squares = offset, self.sum + moved.sum(0), self.squares + moved.square().sum(0)
        self.samples = self.samples + len(target)

    def compute(self) -> Tensor:
        """Return the mean. Raises TrialError for fewer than two samples."""
        return self.scores().mean()

    def scores(self) -> Tensor:
        """Return the share for each target, in the shape of `residual`, which may have members in front."""
        residual, total, squares, samples = self._together()
        if samples < 2:
            raise TrialError("evaluator.metrics: 'r2' needs at least two samples, and the validation data give fewer")
        variance = squares - total.square() / samples
        of_constants = (residual == 0).double()
        return torch.where(variance == 0, of_constants, 1 - residual / variance)

    def _together(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return residual, sum, squares and samples, of all ranks if the states have been put one after the other."""
        if not self.samples.ndim:
            return self.residual, self.sum, self.squares, self.samples
        samples = self.samples.double().view(-1, *[1] * (self.sum.ndim - 1))
        moved = self.offset - self.offset[int((self.samples > 0).int().argmax())]  # to that of the first with samples
        total = (self.sum + samples * moved).sum(0)
        squares = (self.squares + 2 * moved * self.sum + samples * moved.square()).sum(0)
        return self.residual.sum(0), total, squares, self.samples.sum()
