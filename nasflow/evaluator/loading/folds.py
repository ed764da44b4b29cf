"""Folds of cross-validation: each validates on one part of the training samples what trains on the others."""

from collections.abc import Iterable
from typing import Any

import torch

from nasflow.errors import ConfigError
from nasflow.evaluator.loading.labels import labels_of
from nasflow.evaluator.loading.subsets import Numbered, in_order, numbered, some_of
from nasflow.seeds import derive_seed

KEY = "evaluator.folds"


class ByFold(list[Any]):
    """The batches of all folds with the same number in an epoch; None for a fold that has no more."""


def own_batch(batch: Any, number: int) -> Any:
    """Return the batch of a member by its number, None if its fold has no more; the batch itself without folds."""
    return batch[number % len(batch)] if isinstance(batch, ByFold) else batch


def split(loader: Iterable[Any], folds: int, seed: int, target: str) -> list[tuple[Numbered, Numbered]]:
    """Return of each fold a loader to train on and one to validate on.

    The parts are those of scikit-learn's `StratifiedKFold` with `shuffle=True`, where each sample has a known label
    that is a whole number, else those of `KFold`. The samples are trained on as this loader draws them, and validated
    on in their order.

    Args:
        loader: of all samples.
        seed: draws the parts.
        target: what gave the loader.

    Raises:
        ConfigError: samples can't be chosen from this loader, or there are too few.
    """

    def refuse(what: str) -> ConfigError:
        return ConfigError(
            f"{KEY}: {target} gives a loader with {what}, which nasflow can't split; let it split its data itself: "
            "take two more params, fold (from 0 on) and folds, and give the loaders (train, validation) of that fold"
        )

    whole, size = numbered(loader, refuse)
    if size < folds:
        raise ConfigError(f"{KEY}: {target} gives {size} training samples, which can't be split into {folds} folds")
    from sklearn.model_selection import KFold, StratifiedKFold  # noqa: PLC0415 - slow

    labels, state = labels_of(whole, size), derive_seed(seed, "folds") % 2**32
    if labels is not None and torch.unique(labels, return_counts=True)[1].max() >= folds:
        parts = StratifiedKFold(folds, shuffle=True, random_state=state).split(labels, labels)
    else:
        parts = KFold(folds, shuffle=True, random_state=state).split(range(size))
    found = []
    for train, validation in parts:
        kept = some_of(whole, train.tolist(), len(train) / size, refuse)
        if len(kept) == 0:
            raise ConfigError(f"{KEY}: {target} drops the last batch (drop_last), and a fold has no other to train on")
        found.append((kept, in_order(whole, validation.tolist())))
    return found
