"""Which classes a classifier takes for which."""

import torch
from torchmetrics.functional.classification import multiclass_confusion_matrix


class ConfusionCounter:
    """Counts, over batches, how many samples of each class (row) get the largest logit for each class (column).

    Args:
        most_classes: models that tell more classes apart are not counted.
    """

    def __init__(self, most_classes: int):
        self._most = most_classes
        self._counts: torch.Tensor | None = None

    @property
    def counts(self) -> list[list[int]]:
        """The counts `[C][C]` so far; empty if there are none."""
        return [] if self._counts is None else self._counts.tolist()

    def update(self, output: torch.Tensor, target: torch.Tensor) -> None:
        """Count a batch of logits `[B, C]` and class numbers `[B]`; numbers of no class, such as -100, are left out."""
        if output.ndim != 2 or target.shape != output.shape[:1] or not 2 <= output.shape[1] <= self._most:
            return
        classes = output.shape[1]
        counted = (target >= 0) & (target < classes)
        found = multiclass_confusion_matrix(output[counted], target[counted].long(), classes, validate_args=False).cpu()
        self._counts = found if self._counts is None else self._counts + found
