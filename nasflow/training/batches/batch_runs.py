"""Batches in runs, because an iteration of Lightning's loop takes as long as a step of a small model."""

from collections.abc import Iterable, Iterator
from typing import Any

from nasflow.evaluator.loading.data_source import Data
from nasflow.training.batches.seeded_loader import FoldedLoader, SeededLoader

_MOST, _MOST_BYTES, _MOST_SECONDS = 64, 1 << 20, 0.05


class Run(list[Any]):
    """Batches that are trained on one after the other."""


class BatchRuns:
    """The batches of a loader, several at a time: at most 64, or those that fill a mebibyte, or take 50 ms to load."""

    def __init__(self, loader: SeededLoader | FoldedLoader):
        self._loader = loader

    def __iter__(self) -> Iterator[Run]:
        return map(Run, self._loader.several(_MOST, _MOST_BYTES, _MOST_SECONDS))


def training_batches(data: Data) -> Iterable[Any]:
    """Return runs of the training batches, or the batches themselves if they must be taken one by one.

    A data module's must be: its transfer hooks draw from the same stream as the loader.
    """
    loader = data.train
    if data.module is None and isinstance(loader, SeededLoader | FoldedLoader) and loader.can_run_ahead:
        return BatchRuns(loader)
    return loader
