"""Folds are those of scikit-learn, of any loader whose samples have numbers."""

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.model_selection import KFold, StratifiedKFold
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset, WeightedRandomSampler

from nasflow.config.search import DataConfig
from nasflow.errors import ConfigError
from nasflow.evaluator.loading.data_source import load_data
from nasflow.evaluator.loading.folds import split
from nasflow.evaluator.loading.loaders import TensorLoader
from nasflow.seeds import derive_seed
from tests.evaluator.loading.test_data_share import REFUSED
from tests.evaluator.test_data import HERE

X = torch.arange(41.0).reshape(41, 1)
LABELS = torch.tensor([0] * 30 + [1] * 11)
STATE = derive_seed(3, "folds") % 2**32


class Pictures(Dataset[Any]):
    """Has its labels in `targets`, as torchvision's data sets do."""

    def __init__(self, targets: Any):
        self.targets = targets

    def __len__(self) -> int:
        return len(X)

    def __getitem__(self, index: int) -> Any:
        return X[index], int(self.targets[index])


LABELED: dict[str, Any] = {
    "tensors": lambda: TensorLoader((X, LABELS), 8, shuffle=True),
    "data set": lambda: DataLoader(TensorDataset(X, LABELS), 8, shuffle=True),
    "targets": lambda: DataLoader(Pictures(LABELS.tolist()), 8),
    "part": lambda: DataLoader(Subset(Pictures(torch.cat([LABELS, LABELS])), range(41)), 8),
}
UNLABELED: dict[str, Any] = {
    "no label": lambda: TensorLoader((X,), 8, shuffle=True),
    "numbers": lambda: DataLoader(TensorDataset(X, X.squeeze(1)), 8, shuffle=True),
    "several": lambda: DataLoader(TensorDataset(X, LABELS, LABELS), 8),
    "text": lambda: DataLoader(Named(["a"] * 41), 8),
    "of another length": lambda: DataLoader(Pictures(torch.cat([LABELS, LABELS])), 8),
    "each its own": lambda: TensorLoader((X, torch.arange(41)), 8),
}


class Named(Pictures):
    def __getitem__(self, index: int) -> Any:
        return X[index], self.targets[index]


def numbers(loader: Any) -> list[int]:
    return [int(number) for batch in loader for number in batch[0].flatten()]


@pytest.mark.parametrize("name", [*LABELED, *UNLABELED])
def test_the_parts_are_those_of_scikit_learn(name: str) -> None:
    expected: Any = KFold(4, shuffle=True, random_state=STATE).split(X)
    if name in LABELED:
        expected = StratifiedKFold(4, shuffle=True, random_state=STATE).split(X, LABELS)
    found = split((LABELED | UNLABELED)[name](), 4, 3, "load")
    for (train, validation), (train_numbers, validation_numbers) in zip(found, expected, strict=True):
        assert sorted(numbers(train)) == train_numbers.tolist()
        assert numbers(validation) == validation_numbers.tolist()
        assert len(next(iter(train))[0]) == len(next(iter(validation))[0]) == 8


def test_they_are_drawn_by_the_seed() -> None:
    first, again, other = ([numbers(v) for _, v in split(LABELED["tensors"](), 4, seed, "load")] for seed in (3, 3, 4))
    assert first == again != other


def test_training_is_shuffled_and_validation_is_whole() -> None:
    loader = DataLoader(TensorDataset(X, LABELS), 8, shuffle=True, drop_last=True)
    for train, validation in split(loader, 4, 3, "load"):
        assert numbers(train) != numbers(train) and len(numbers(train)) == 24
        assert len(numbers(validation)) in (10, 11)


def test_weights_stay_with_their_samples() -> None:
    weights = [float(number % 4 == 0) for number in range(41)]
    loader = DataLoader(TensorDataset(X, LABELS), 8, sampler=WeightedRandomSampler(weights, 100))
    for train, validation in split(loader, 4, 3, "load"):
        drawn = set(numbers(train))
        assert len(numbers(train)) in (73, 74, 75, 76)
        assert all(number % 4 == 0 for number in drawn) and drawn.isdisjoint(numbers(validation))


def test_a_share_of_each_fold() -> None:
    config = DataConfig(target="targets.py:pair", params={"size": 40}, fraction=0.5)
    data = load_data(config, HERE, 3, folds=4)
    whole = load_data(config.model_copy(update={"fraction": 1.0}), HERE, 3, folds=4)
    for own, full in zip(data.folds, whole.folds, strict=True):
        train, validation = (set(map(tuple, np.concatenate([b[0] for b in p]))) for p in (own.train, own.validation))
        assert len(train) == 15 and len(validation) == 10
        assert train < set(map(tuple, np.concatenate([b[0] for b in full.train])))


def test_data_that_split_themselves() -> None:
    data = load_data(DataConfig(target="targets.py:own_folds"), HERE, 3, folds=3)
    assert [[int(x) for (x,) in fold.train] for fold in data.folds] == [[1, 2], [0, 2], [0, 1]]
    assert [[int(x) for (x,) in fold.validation or ()] for fold in data.folds] == [[0], [1], [2]]
    assert data.of(4) is data.folds[1] and data.train is data.folds[0].train
    with pytest.raises(ConfigError, match="gives no validation data for fold 0; it should give both"):
        load_data(DataConfig(target="targets.py:own_folds", params={"both": False}), HERE, 3, folds=3)


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name: str) -> None:
    make, what = REFUSED[name]
    with pytest.raises(ConfigError) as caught:
        split(make(), 4, 3, "data.py:load")
    assert str(caught.value) == (
        f"evaluator.folds: data.py:load gives a loader with {what}, which nasflow can't split; let it split its data "
        "itself: take two more params, fold (from 0 on) and folds, and give the loaders (train, validation) of that "
        "fold"
    )


def test_too_few_samples() -> None:
    with pytest.raises(ConfigError, match=r"evaluator.folds: load gives 41 training samples, .* into 42 folds"):
        split(LABELED["tensors"](), 42, 3, "load")
    with pytest.raises(
        ConfigError, match=r"evaluator.folds: load drops the last batch \(drop_last\), and a fold has no"
    ):
        split(DataLoader(TensorDataset(X), 40, drop_last=True), 2, 3, "load")
