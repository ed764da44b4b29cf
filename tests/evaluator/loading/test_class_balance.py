"""`class_weights: balanced` counts labels of what is trained on, or says why it can't."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.utils.class_weight import compute_class_weight
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from nasflow.config.evaluator.supervised import ClassificationConfig
from nasflow.config.evaluator.training import DataConfig
from nasflow.errors import ConfigError
from nasflow.evaluator.loading.class_balance import with_class_weights
from nasflow.evaluator.loading.data_source import load_data
from nasflow.evaluator.loading.loaders import TensorLoader

LABELS = torch.tensor([0] * 30 + [1] * 9 + [2] * 21)
X = torch.arange(60.0).reshape(60, 1)


class Targets(Dataset[Any]):
    """As torchvision's: a list of labels."""

    targets = LABELS.tolist()

    def __len__(self) -> int:
        return 60

    def __getitem__(self, index: int) -> Any:
        raise AssertionError("no sample is loaded to count labels")


class Unknown(Targets):
    targets = None  # type: ignore[assignment]


class Swaps(Targets):
    """Gives other labels than it has: 2 for 0, and 0 for 2."""

    def __init__(self, targets: Any):
        self.targets, self.target_transform = targets, swapped


class OneHot(Targets):
    """Gives vectors."""

    def target_transform(self, label: int) -> torch.Tensor:
        return torch.eye(3)[label]


def swapped(label: int) -> int:
    return {0: 2, 1: 1, 2: 0}[label]


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(zip(X, LABELS, strict=True))


def config(**values: Any) -> ClassificationConfig:
    data = {"target": "test_class_balance.py:data"}
    return ClassificationConfig.model_validate({"data": data, "class_weights": "balanced", **values})


def wanted(labels: torch.Tensor) -> Any:
    return pytest.approx(compute_class_weight("balanced", classes=np.unique(labels), y=labels.numpy()), rel=1e-15)


CHOSEN = list(range(0, 60, 2))
LOADERS: dict[str, tuple[Callable[[], Iterable[Any]], torch.Tensor]] = {
    "tensors": (lambda: TensorLoader((X, LABELS), 8, shuffle=True), LABELS),
    "a TensorDataset": (lambda: DataLoader(TensorDataset(X, LABELS), 8), LABELS),
    "targets": (lambda: DataLoader(Targets(), 8), LABELS),
    "transformed to vectors": (lambda: DataLoader(OneHot(), 8), LABELS),
    "a subset": (lambda: DataLoader(Subset(Targets(), CHOSEN), 8), LABELS[CHOSEN]),
    "a sampler of some": (lambda: DataLoader(Targets(), 8, sampler=SubsetRandomSampler(CHOSEN)), LABELS[CHOSEN]),
    "batches of some": (
        lambda: DataLoader(Targets(), batch_sampler=BatchSampler(SubsetRandomSampler(CHOSEN), 8, drop_last=False)),
        LABELS[CHOSEN],
    ),
    "small numbers": (lambda: TensorLoader((X, LABELS.to(torch.uint8)), 8), LABELS),
    "transformed": (lambda: DataLoader(Swaps(LABELS.tolist()), 8), 2 - LABELS),
    "a transformed tensor": (lambda: DataLoader(Swaps(LABELS), 8), 2 - LABELS),
    "ignored": (lambda: TensorLoader((X, LABELS.where(LABELS < 2, -100)), 8), LABELS[LABELS < 2]),
}


@pytest.mark.parametrize("name", LOADERS)
def test_as_scikit_learn(name: str) -> None:
    make, labels = LOADERS[name]
    assert with_class_weights(config(), make).class_weights == wanted(labels)


@pytest.mark.parametrize(
    ("loader", "says"),
    [
        (DataLoader(Stream(), 8), "samples that have no numbers"),
        ([(X, LABELS)], "a list of samples that have no numbers"),
        (DataLoader(Unknown(), 8), "samples whose labels are not known"),
        (DataLoader(Targets(), 8, sampler=WeightedRandomSampler([1.0] * 60, 60)), "a sampler of its own"),
        (TensorLoader((X, LABELS.float()), 8), "samples whose labels are not known"),
        (TensorLoader((X, LABELS.where(LABELS != 1, 2)), 8), "has no training sample of class 1"),
    ],
    ids=["stream", "list", "unknown", "weighted", "float", "absent"],
)
def test_what_can_not_be_counted_is_said(loader: Iterable[Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says) as refused:
        with_class_weights(config(), lambda: loader)
    assert str(refused.value).startswith("evaluator.class_weights: ") and "write a weight" in str(refused.value)


def data() -> tuple[Iterable[Any], Iterable[Any]]:
    return TensorLoader((X, LABELS), 8, shuffle=True), TensorLoader((X, LABELS), 8)


def test_what_a_member_does_not_train_on_does_not_count() -> None:
    source = DataConfig(target="test_class_balance.py:data", fraction=0.5)
    share = load_data(source, Path(__file__).parent, seed=3).train
    labels = torch.cat([y for _, y in share])
    assert len(labels) == 30
    assert with_class_weights(config(), lambda: share).class_weights == wanted(labels)
    folds = load_data(source.model_copy(update={"fraction": 1.0}), Path(__file__).parent, seed=3, folds=3).folds
    for fold in folds:
        labels = torch.cat([y for _, y in fold.train])
        assert with_class_weights(config(), lambda fold=fold: fold.train).class_weights == wanted(labels)


def test_any_other_config_needs_no_data() -> None:
    for one in (config(class_weights=[1, 2]), config(class_weights=None)):
        assert with_class_weights(one, lambda: pytest.fail("no data is needed")) is one
