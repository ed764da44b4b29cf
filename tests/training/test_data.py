"""The order of the data follows from the seed and the epoch alone, and one pass feeds all members."""

import dataclasses
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pytorch_lightning import LightningDataModule
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    Sampler,
    Subset,
    TensorDataset,
    WeightedRandomSampler,
    get_worker_info,
)

from nasflow.config.search import DataConfig
from nasflow.evaluator.loading.data_source import Data
from nasflow.evaluator.loading.loaders import TensorLoader
from nasflow.training.batches.batch_runs import BatchRuns, training_batches
from nasflow.training.batches.seeded_loader import SeededLoader
from nasflow.training.member_maker import load_job_data
from tests.training.jobs import HERE, evaluator, evictions, make_job, sample, train
from tests.training.models.spaces import Augmented, Unsized, augmented, rows


class ByEpoch(Sampler[int]):
    """Shuffles by `set_epoch`, as distributed samplers do."""

    def __init__(self) -> None:
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return 40

    def __iter__(self) -> Any:
        return iter(random.Random(self.epoch).sample(range(40), 40))


def own_sampler() -> RandomSampler:
    return RandomSampler(Augmented(), generator=torch.Generator())


class Stream(IterableDataset[tuple[torch.Tensor, torch.Tensor]]):
    """Samples in an order of its own, a part of them in each worker; by `set_epoch`, or by the global generators."""

    def __init__(self, by_epoch: bool):
        self.by_epoch, self.epoch = by_epoch, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Any:
        worker = get_worker_info()
        numbers = list(range(worker.id if worker else 0, 40, worker.num_workers if worker else 1))
        (random.Random(self.epoch) if self.by_epoch else random).shuffle(numbers)
        samples = Augmented()
        return ((samples.x[number], samples.y[number]) for number in numbers)


class Drawing(Augmented):
    """Adds noise by a generator of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = torch.Generator()

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.x[index] + torch.rand((), generator=self.generator), self.y[index]


def weighted(**options: Any) -> DataLoader[Any]:
    weights = (1.0 + torch.arange(40)).tolist()
    return DataLoader(Augmented(), 8, sampler=WeightedRandomSampler(weights, 30, **options))


LOADERS = {
    "weighted": weighted,
    "weighted by its generator": lambda: weighted(generator=torch.Generator()),
    "stream": lambda: DataLoader(Stream(False), 8),
    "stream by epoch": lambda: DataLoader(Stream(True), 8),
    "stream with workers": lambda: DataLoader(Stream(False), 8, num_workers=2, persistent_workers=True),
    "stream by epoch with workers": lambda: DataLoader(Stream(True), 8, num_workers=2, persistent_workers=True),
    "tensors": lambda: TensorLoader(rows(), 16, shuffle=True),
    "unsized": Unsized,
    "shuffled": lambda: augmented()[0],
    "part of a data set": lambda: DataLoader(Subset(Subset(Drawing(), range(30)), range(20)), 8),
    "own generator": lambda: augmented(generator=torch.Generator())[0],
    "own sampler": lambda: DataLoader(Augmented(), 8, sampler=own_sampler()),
    "own batch sampler": lambda: DataLoader(Augmented(), batch_sampler=BatchSampler(own_sampler(), 8, False)),
    "by epoch": lambda: DataLoader(Augmented(), 8, sampler=ByEpoch()),
    "workers": lambda: augmented(2)[0],
    "persistent workers": lambda: augmented(2, persistent_workers=True)[0],
}


def batches(loader: SeededLoader, epoch: int) -> list[torch.Tensor]:
    loader.epoch = epoch
    return [torch.cat([x.flatten(), y.double()]) for x, y in loader]


def same(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    return len(a) == len(b) and all(map(torch.equal, a, b))


@pytest.mark.parametrize("name", LOADERS)
def test_an_epoch_is_the_same_whatever_came_before(name: str) -> None:
    """A new loader starts in epoch 1, as after a restart, and with other global generators."""
    steady = SeededLoader(LOADERS[name](), seed=3)
    first, second, third = (batches(steady, epoch) for epoch in range(3))
    assert not same(first, second)
    assert not same(second, third)
    torch.manual_seed(9)
    np.random.seed(9)
    random.seed(9)
    resumed = SeededLoader(LOADERS[name](), seed=3)
    assert same(batches(resumed, 1), second)
    assert same(batches(resumed, 2), third)
    assert same(batches(steady, 1), second)
    if "by epoch" not in name:  # whose order is its own affair, but for the epoch
        assert not same(batches(SeededLoader(LOADERS[name](), seed=4), 1), second)


def test_a_pass_left_in_the_middle_changes_nothing() -> None:
    loader = SeededLoader(augmented()[0], seed=3)
    expected = batches(loader, 1)
    next(iter(loader))
    assert same(batches(loader, 1), expected)


def test_iterating_leaves_the_global_generators_alone() -> None:
    torch.manual_seed(0)
    before = torch.get_rng_state()
    numpy = np.random.get_state()[1].copy()
    python = random.getstate()
    for _ in SeededLoader(augmented()[0], seed=3):
        assert torch.equal(torch.get_rng_state(), before)
    assert np.array_equal(np.random.get_state()[1], numpy)
    assert random.getstate() == python


def test_length_is_known_where_the_loader_knows_it() -> None:
    assert len(SeededLoader(augmented()[0], 0)) == 5
    assert not hasattr(SeededLoader(Unsized(), 0), "__len__")


def test_training_and_validation_draw_apart() -> None:
    config = DataConfig(target="spaces.py:both_shuffled")
    data = load_job_data(config, HERE, seed=1)
    orders = [order(data.train), order(data.validation or []), order(load_job_data(config, HERE, seed=2).train)]
    assert sorted(orders[0]) == sorted(orders[1]) == sorted(orders[2])
    assert len({str(numbers) for numbers in orders}) == 3


def order(loader: Iterable[Any]) -> list[int]:
    return [int(number) for _, y in loader for number in y]


@pytest.mark.parametrize("members", [1, 8])
def test_one_pass_feeds_all(members: int, tmp_path: Path) -> None:
    counter = tmp_path / "looked-up"
    data = {"target": "spaces.py:augmented", "params": {"counter": str(counter)}}
    config = evaluator(data=data, epochs=3)
    events = train(make_job("spaces.py:net", config, sample("spaces.py:net", config, members)), tmp_path / "root")
    assert not evictions(events)
    assert counter.stat().st_size == 3 * 40


def test_a_trial_that_needs_other_data_than_its_job_is_refused(tmp_path: Path) -> None:
    config = evaluator(data={"target": "spaces.py:blobs", "params": {"batch_size": {"pick": [8, 16]}}})
    net = {"width": 4, "depth": 1, "dropout": 0.1}
    job = make_job("spaces.py:net", config, [{**net, "data.params.batch_size": size} for size in (8, 16)])
    shared = job.model_copy(update={"data": DataConfig(target="spaces.py:blobs", params={"batch_size": 8})})
    evicted = evictions(train(shared, tmp_path))
    assert evicted.keys() == {1}
    assert evicted[1].error.startswith(
        'ConfigError: trial 1 asks for other data than its job: spaces.py:blobs({"batch_size": 16})'
    )


def test_who_gives_batches_ahead() -> None:
    x = torch.zeros(6, 2)
    samples = TensorDataset(x)
    for loader, can in (
        (TensorLoader((x,), 2), True),
        (DataLoader(samples, 2), True),
        (DataLoader(samples, 2, num_workers=1), False),
        (DataLoader(samples, 2, collate_fn=lambda rows: rows[0]), False),
        (DataLoader(samples, batch_size=None), False),
        ([x, x], False),
    ):
        data = Data(SeededLoader(loader, 0), None)  # type: ignore[arg-type]
        assert isinstance(training_batches(data), BatchRuns) is can
        module = LightningDataModule()
        assert training_batches(dataclasses.replace(data, module=module)) is data.train


@pytest.mark.parametrize("name", ["tensors", "shuffled", "own sampler", "unsized"])
@pytest.mark.parametrize(("most", "most_bytes", "lengths"), [(2, 10**6, [2, 2, 1]), (9, 10**6, [5]), (9, 1, [1] * 5)])
def test_several_at_a_time_are_the_same_batches(name: str, most: int, most_bytes: int, lengths: list[int]) -> None:
    loader = SeededLoader(LOADERS[name](), seed=3)
    loader.epoch = 1
    state = torch.get_rng_state()
    several = list(loader.several(most, most_bytes))
    assert torch.equal(torch.get_rng_state(), state)
    assert sum(map(len, several)) == len(batches(loader, 1))
    if sum(map(len, several)) == 5:
        assert [len(some) for some in several] == lengths
    assert same([torch.cat([x.flatten(), y.double()]) for some in several for x, y in some], batches(loader, 1))
