"""`evaluator.batches_per_epoch`: an epoch is so many batches, which go on where those of the last one ended."""

from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from nasflow.errors import ConfigError
from nasflow.evaluator.loading.data_source import Data
from nasflow.job.events import Epoch, Event
from nasflow.training.batches.seeded_loader import SeededLoader
from nasflow.training.member_maker import load_job_data
from nasflow.training.wide.shares import ShareLoader
from tests.training.fused_jobs import fused_and_apart, interrupted_as_whole
from tests.training.jobs import HERE, evaluator, make_job, sample, train, weights
from tests.training.models.spaces import augmented
from tests.training.test_data import LOADERS, batches, same

NET = "spaces.py:net"
NOISY = {"target": "spaces.py:augmented"}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.long] * ("workers" in name)) for name in LOADERS]
)
def test_epochs_are_pieces_of_passes(name: str) -> None:
    """In whatever order they come, and in whatever lists."""
    passes = SeededLoader(LOADERS[name](), seed=3)
    each = list(chain.from_iterable(batches(passes, number) for number in range(4)))
    loader = SeededLoader(LOADERS[name](), seed=3, per_epoch=3)
    assert len(loader) == 3  # type: ignore[arg-type]
    for epoch in (0, 1, 2, 1, 3, 0):
        assert same(batches(loader, epoch), each[3 * epoch : 3 * epoch + 3])
    resumed = SeededLoader(LOADERS[name](), seed=3, per_epoch=3)
    resumed.epoch = 2
    lists = list(resumed.several(9, 10**6))
    assert same([torch.cat([x.flatten(), y.double()]) for some in lists for x, y in some], each[6:9])


def test_an_epoch_of_several_passes_and_one_left_in_the_middle() -> None:
    passes = SeededLoader(augmented()[0], seed=3)
    each = list(chain.from_iterable(batches(passes, number) for number in range(6)))
    loader = SeededLoader(augmented()[0], seed=3, per_epoch=12)
    first, second = batches(loader, 0), batches(loader, 1)
    assert same(first + second, each[:24])
    loader.epoch = 0
    next(iter(loader))
    assert same(batches(loader, 1), second)
    assert same(batches(loader.from_start(), 0), first)
    assert same(batches(loader, 1), second)


def test_a_limit_leaves_out_the_rest_of_each_epoch() -> None:
    passes = SeededLoader(augmented()[0], seed=3)
    each = list(chain.from_iterable(batches(passes, number) for number in range(2)))
    loader = SeededLoader(augmented()[0], seed=3, limit=2, per_epoch=3)
    assert len(loader) == 2  # type: ignore[arg-type]
    assert same(batches(loader, 0) + batches(loader, 1), each[0:2] + each[3:5])


@pytest.mark.parametrize("folds", [None, 2])
def test_a_validation_on_other_samples_of_the_same_data_set_changes_nothing(folds: int | None) -> None:
    """It may come in the middle of a pass; a job that goes on from there begins with the pass."""

    def load() -> Data:
        config = evaluator(data={"target": "counted_data.py:halves"}, batches_per_epoch=3, folds=folds)
        return load_job_data(config.data, HERE, 1, config).of(1)

    def epochs(data: Data, first: int, validates: bool) -> list[list[torch.Tensor]]:
        found = []
        for epoch in range(first, 4):
            found.append(batches(data.train, epoch))  # type: ignore[arg-type]
            found += [batches(data.validation, epoch)] if validates else []  # type: ignore[arg-type]
        return found

    whole, resumed = epochs(load(), 0, True), epochs(load(), 2, True)
    assert all(map(same, whole[4:], resumed))
    assert all(map(same, whole[::2], epochs(load(), 0, False)))


class _Counted:
    """Says that it has `said` batches, and gives `count`."""

    def __init__(self, count: int, said: int):
        self.count, self.said = count, said

    def __len__(self) -> int:
        return self.said

    def __iter__(self) -> Iterator[Any]:
        return iter([(torch.zeros(2), torch.zeros(2))] * self.count)


def test_a_pass_of_another_length_is_an_error_and_one_without_batches_ends_the_epoch() -> None:
    with pytest.raises(ConfigError, match="gives 4 batches where its length is 5"):
        batches(SeededLoader(_Counted(4, said=5), 0, per_epoch=9), 0)
    assert batches(SeededLoader(_Counted(0, said=0), 0, per_epoch=9), 3) == []


@pytest.mark.parametrize("first", [0, 2])
@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.long)])
def test_ranks_together_have_the_batches_of_one_process(first: int, workers: int) -> None:
    rows = TensorDataset(torch.arange(50.0), torch.arange(50.0))

    def whole() -> SeededLoader:
        return SeededLoader(DataLoader(rows, 8, shuffle=True, num_workers=workers), 5, per_epoch=4)

    ranks = [ShareLoader(whole(), rank, 2) for rank in range(2)]
    own = [[(batches(loader, epoch), len(loader.shares)) for epoch in range(first, 5)] for loader in ranks]
    for epoch, (one, other) in enumerate(zip(*own, strict=True), first):
        expected = batches(whole(), epoch)
        for batch, a, b in zip(expected, one[0], other[0], strict=True):
            x, y = (torch.cat([half.chunk(2)[k] for half in (a, b)]) for k in range(2))
            assert torch.equal(batch, torch.cat([x, y]))


def trained(root: Path, trials: int = 2) -> list[dict[str, torch.Tensor]]:
    return [weights(root, trial) for trial in range(trials)]


def epochs_of(events: list[Event], trial: int) -> list[Epoch]:
    return [event for event in events if isinstance(event, Epoch) and event.trial == trial]


@pytest.mark.parametrize("fuse", ["never", "always"])
def test_the_same_training_with_more_or_fewer_validations(fuse: Any, tmp_path: Path) -> None:
    """Six passes of five batches: two epochs of fifteen batches, or fifteen of two."""
    found = []
    for per_epoch, epochs in ((None, 6), (5, 6), (15, 2), (2, 15)):
        config = evaluator(
            data=NOISY, epochs=epochs, batches_per_epoch=per_epoch, schedule={"name": "one_cycle", "interval": "step"}
        )
        root = tmp_path / str(per_epoch)
        events = train(make_job(NET, config, sample(NET, config, 2), fuse=fuse), root)
        assert [event.epoch for event in epochs_of(events, 1)] == list(range(1, epochs + 1))
        assert all("val_loss" in event.metrics for event in epochs_of(events, 1))
        found.append(trained(root))
    for other in found[1:]:
        for one, two in zip(found[0], other, strict=True):
            assert all(torch.equal(one[name], two[name]) for name in one)


CONFIGS: dict[str, dict[str, Any]] = {
    "noisy": {},
    "several passes": {"batches_per_epoch": 12},
    "folds": {"folds": 2},
    "repeats": {"repeats": 2},
    "validated now and then": {"epochs": 6, "validate_every": 3},
    "accumulated": {"accumulate_grad_batches": 2},
    "of unknown length": {"data": {"target": "spaces.py:unsized"}},
}
LONG = ("noisy", "repeats", "validated now and then", "accumulated")


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.long] * (name in LONG)) for name in CONFIGS])
def test_fused_apart_and_interrupted(name: str, tmp_path: Path) -> None:
    config = evaluator(
        **{"data": NOISY, "batches_per_epoch": 3, "epochs": 4, "precision": "64-true"} | CONFIGS[name],
        optimizer={"lr": {"float": [1e-3, 1e-1], "log": True}},
    )
    fused_and_apart(NET, config, tmp_path / "fused", 3)
    interrupted_as_whole(make_job(NET, config, sample(NET, config, 2), fuse="always"), tmp_path / "interrupted")
