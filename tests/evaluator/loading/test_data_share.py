"""A share of the training samples: the same for one seed, and more for a larger share."""

import random
from typing import Any

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from nasflow.config.search import SearchConfig
from nasflow.errors import ConfigError
from nasflow.evaluator.candidate import candidate_space
from nasflow.evaluator.check import check_search
from nasflow.evaluator.loading.data_share import share_of
from nasflow.evaluator.loading.data_source import fingerprint, load_data
from nasflow.evaluator.loading.loaders import TensorLoader
from tests.evaluator.test_data import HERE

X = torch.arange(40.0).reshape(40, 1)


def samples() -> TensorDataset:
    return TensorDataset(X)


LOADERS: dict[str, Any] = {
    "tensors": lambda: TensorLoader((X,), 8, shuffle=True),
    "in order": lambda: DataLoader(samples(), 8, drop_last=True),
    "shuffled": lambda: DataLoader(samples(), 8, shuffle=True, generator=torch.Generator()),
    "workers": lambda: DataLoader(samples(), 8, num_workers=1, persistent_workers=True, prefetch_factor=3),
    "batches": lambda: DataLoader(samples(), batch_sampler=BatchSampler(RandomSampler(samples()), 8, drop_last=False)),
    "one by one": lambda: DataLoader(samples(), batch_size=None, shuffle=True),
}


def numbers(loader: Any) -> list[int]:
    return [int(number) for (batch,) in loader for number in batch.flatten()]


@pytest.mark.parametrize("name", LOADERS)
def test_the_same_samples_and_more_of_them(name: str) -> None:
    assert len(numbers(share_of(LOADERS[name](), 1, 3, "load"))) == 40
    shares = [set(numbers(share_of(LOADERS[name](), fraction, 3, "load"))) for fraction in (0.2, 0.4, 0.8)]
    assert [len(share) for share in shares] == [8, 16, 32]
    assert shares[0] < shares[1] < shares[2]
    assert shares[1] == set(numbers(share_of(LOADERS[name](), 0.4, 3, "load")))
    assert shares[1] != set(numbers(share_of(LOADERS[name](), 0.4, 4, "load")))


def test_the_loader_stays_as_it_is() -> None:
    share: Any = share_of(LOADERS["tensors"](), 0.5, 3, "load")
    assert (share.batch_size, share.shuffle, len(share)) == (8, True, 3)
    own = LOADERS["shuffled"]()
    share = share_of(own, 0.5, 3, "load")
    assert share.generator is own.generator and len(set(numbers(share))) == 20 and numbers(share) != numbers(share)
    share = share_of(LOADERS["in order"](), 0.5, 3, "load")
    assert share.drop_last and numbers(share) == sorted(numbers(share)) and len(share) == 2
    share = share_of(LOADERS["batches"](), 0.5, 3, "load")
    assert len(share) == 3 and numbers(share) != numbers(share)
    workers = share_of(LOADERS["workers"](), 0.5, 3, "load")
    assert [getattr(workers, name) for name in ("num_workers", "persistent_workers", "prefetch_factor")] == [1, True, 3]


def test_weights_stay_with_their_samples() -> None:
    weights = [float(number % 4 == 0) for number in range(40)]
    own = DataLoader(samples(), 8, sampler=WeightedRandomSampler(weights, 100))
    drawn = numbers(share_of(own, 0.5, 3, "load"))
    assert len(drawn) == 50
    assert all(number % 4 == 0 for number in drawn) and 1 < len(set(drawn)) < 10


class Unnumbered(IterableDataset[int]):
    def __iter__(self) -> Any:
        return iter(range(3))


class Endless(Dataset[int]):
    def __getitem__(self, index: int) -> int:
        return index


def own_batches() -> Any:
    class Own(BatchSampler):
        pass

    return DataLoader(samples(), batch_sampler=Own(SequentialSampler(X), 8, False))


REFUSED: dict[str, tuple[Any, str]] = {
    "stream": (lambda: DataLoader(Unnumbered()), "a DataLoader of samples that have no numbers"),
    "list": (lambda: [X], "a list of samples that have no numbers"),
    "sampler": (
        lambda: DataLoader(samples(), sampler=SubsetRandomSampler([1, 2])),
        "a sampler of its own (SubsetRandomSampler)",
    ),
    "with replacement": (
        lambda: DataLoader(samples(), sampler=RandomSampler(samples(), replacement=True)),
        "a sampler of its own (RandomSampler)",
    ),
    "batches": (own_batches, "a batch sampler of its own (Own)"),
    "endless": (lambda: DataLoader(Endless(), sampler=SequentialSampler(X)), "samples without a length (Endless)"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name: str) -> None:
    make, what = REFUSED[name]
    with pytest.raises(ConfigError) as caught:
        share_of(make(), 0.5, 3, "data.py:load")
    assert str(caught.value) == (
        f"evaluator.data.fraction: data.py:load gives a loader with {what}, from which nasflow can't leave out "
        "samples; do that in its own code, by a param, which may be searched too"
    )


def config(fraction: Any, **evaluator: Any) -> SearchConfig:
    data = {"target": "nasflow.evaluator.data:Wine", "params": {"batch_size": 16}, "fraction": fraction}
    return SearchConfig.model_validate(
        {
            "name": "share",
            "space": {"target": "nasflow.space.ready:mlp", "params": {"in_features": 13, "classes": 3}},
            "evaluator": {"kind": "classification", "data": data, **evaluator},
            "base_dir": HERE,
        }
    )


@pytest.mark.parametrize("fraction", [0, -0.5, 1.5])
def test_an_impossible_share_is_named(fraction: float) -> None:
    with pytest.raises(
        ConfigError, match=r"^evaluator\.data\.fraction: it should be a number above 0 and at most 1, not"
    ):
        check_search(config(fraction))


def test_a_searched_share_is_data_of_its_own() -> None:
    """Trials with equal shares share a job."""
    searched = config({"pick": [0.25, 1.0]})
    space = candidate_space(searched.space, searched.evaluator, HERE)
    closed = {}
    for seed in range(20):
        architecture = space.sample(random.Random(seed))
        training = space.build(architecture).training
        closed[architecture["data.fraction"]] = training.data
    assert closed.keys() == {0.25, 1.0}
    assert fingerprint(closed[1.0]) == 'nasflow.evaluator.data:Wine({"batch_size": 16})'
    assert fingerprint(closed[0.25]) == 'nasflow.evaluator.data:Wine({"batch_size": 16}) x 0.25'
    whole, part = load_data(closed[1.0], HERE), load_data(closed[0.25], HERE)
    assert sum(len(y) for _, y in whole.train) == 133
    assert sum(len(y) for _, y in part.train) == 33
    assert part.validation is not None
    assert sum(len(y) for _, y in part.validation) == 45
