"""A loader of a share of the samples, for cheap trials."""

from collections.abc import Iterable
from typing import Any

import torch

from nasflow.errors import ConfigError
from nasflow.evaluator.loading.subsets import numbered, some_of
from nasflow.seeds import derive_seed

_KEY = "evaluator.data.fraction"


def share_of(loader: Iterable[Any], fraction: float, seed: int, target: str) -> Iterable[Any]:
    """Return a loader of a share of the samples, in batches of the same size; this one itself for all of them.

    The same seed draws the same samples, and those of a smaller share are among those of a larger one.

    Raises:
        ConfigError: the fraction is not above 0 and at most 1, or samples can't be left out of this loader.
    """
    if not 0 < fraction <= 1:
        raise ConfigError(f"{_KEY}: it should be a number above 0 and at most 1, not {fraction!r}")
    if fraction == 1:
        return loader

    def refuse(what: str) -> ConfigError:
        return ConfigError(
            f"{_KEY}: {target} gives a loader with {what}, from which nasflow can't leave out samples; do that in its "
            "own code, by a param, which may be searched too"
        )

    whole, size = numbered(loader, refuse)
    return some_of(whole, _drawn(size, fraction, seed), fraction, refuse)


def _drawn(size: int, fraction: float, seed: int) -> list[int]:
    """Return the numbers of the samples, in order; those of smaller fractions come first in one random order."""
    order = torch.randperm(size, generator=torch.Generator().manual_seed(derive_seed(seed, "fraction")), device="cpu")
    return sorted(order[: max(1, round(fraction * size))].tolist())
