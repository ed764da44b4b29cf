"""`class_weights: balanced`: how much a class counts follows from how often it occurs in the training data."""

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import torch
from torch.utils.data import RandomSampler, SequentialSampler, SubsetRandomSampler

from nasflow.config.evaluator.supervised import ClassificationConfig
from nasflow.errors import ConfigError
from nasflow.evaluator.loading.labels import labels_of
from nasflow.evaluator.loading.loaders import TensorLoader
from nasflow.evaluator.loading.subsets import Numbered, Refuse, numbered, sampler_of

_KEY = "evaluator.class_weights"

Config = TypeVar("Config")


def with_class_weights(config: Config, train: Callable[[], Iterable[Any]]) -> Config:
    """Return a closed config whose `class_weights: balanced` are numbers; any other is returned as it is.

    The weight of a class is samples / (classes * samples of the class), as scikit-learn's "balanced".

    Args:
        config: of a candidate.
        train: gives the loader of its training samples.

    Raises:
        ConfigError: the labels are not known without loading samples, or a class below the last has no sample.
    """
    if not isinstance(config, ClassificationConfig) or config.class_weights != "balanced":
        return config

    def refuse(what: str) -> ConfigError:
        return ConfigError(
            f"{_KEY}: the labels of {config.data.target} can't be counted, because it gives a loader with {what}; "
            "write a weight for each class"
        )

    loader, size = numbered(train(), refuse)
    labels = labels_of(loader, size, transformed=True)
    if labels is None:
        raise refuse("samples whose labels are not known: a TensorDataset, or a dataset with 'targets', shows them")
    labels = _drawn(labels, loader, refuse)
    counts = torch.bincount(labels[labels >= 0].long())  # cross_entropy ignores -100
    if absent := (counts == 0).nonzero().flatten().tolist():
        raise ConfigError(
            f"{_KEY}: {config.data.target} has no training sample of class {absent[0]}; write a weight for each class"
        )
    weights = counts.sum() / (len(counts) * counts.double())
    return config.replaced(class_weights=weights.tolist())


def _drawn(labels: torch.Tensor, loader: Numbered, refuse: Refuse) -> torch.Tensor:
    """Return the labels of the samples that a loader draws in a pass. Raises what `refuse` returns."""
    if isinstance(loader, TensorLoader):
        return labels
    sampler = sampler_of(loader)
    if type(sampler) is SubsetRandomSampler:
        return labels[torch.as_tensor(sampler.indices)]
    if type(sampler) not in (SequentialSampler, RandomSampler):
        raise refuse(f"a sampler of its own ({type(sampler).__name__})")
    return labels
