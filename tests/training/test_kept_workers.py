"""Worker processes that stay give each epoch the batches that new ones would give."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    Subset,
    WeightedRandomSampler,
    get_worker_info,
)

from nasflow.job.events import Epoch
from nasflow.training.batches.seeded_loader import SeededLoader
from nasflow.training.runner import run_job_file
from tests.training.jobs import evaluator, make_job, outcome, sample
from tests.training.models.spaces import Augmented
from tests.training.recovery.test_killed import events_of, write_job

NET = "spaces.py:net"


class Drawing(Dataset[torch.Tensor]):
    """Draws by the worker's seed, by a torch generator, and by the epoch, and gives batches at a time."""

    def __init__(self) -> None:
        self.generator, self.epoch = torch.Generator(), -1

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> torch.Tensor:
        seed = get_worker_info().seed  # type: ignore[union-attr]
        drawn = torch.rand(2, generator=self.generator).double()
        return torch.tensor([index, self.epoch, *drawn.tolist(), random.Random(seed).random()])

    def __getitems__(self, indices: list[int]) -> list[torch.Tensor]:
        return [self[index] for index in indices]


class Numbers(IterableDataset[torch.Tensor]):
    """Its part of the numbers, in an order of the global generators."""

    start = 0

    def __iter__(self) -> Iterator[torch.Tensor]:
        worker: Any = get_worker_info()
        numbers = list(range(self.start + worker.id, self.start + 30, worker.num_workers))
        random.shuffle(numbers)
        return (torch.tensor([number, np.random.rand(), torch.rand(()).item()]) for number in numbers)


class Scaled(DataLoader[Any]):
    """Looks at its data set in its overridden `__iter__`."""

    def __iter__(self) -> Iterator[Any]:
        return (batch * self.dataset.factor for batch in super().__iter__())  # type: ignore[attr-defined]


class Processes(Dataset[int]):
    """The process that a sample is made in."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        return os.getpid()


def seeds(worker: int) -> None:
    """As many users do."""
    random.seed(worker)
    np.random.seed(torch.initial_seed() % 2**32)
    torch.manual_seed(worker)


def sets_start(worker: int) -> None:
    """As PyTorch's docs show for a data set that is to be split."""
    info: Any = get_worker_info()
    info.dataset.start = 100 * (1 + worker)


def late(worker: int) -> None:
    """The second worker begins when the first batch has long been used."""
    time.sleep(0.5 * worker)


def drawing(**options: Any) -> DataLoader[Any]:
    return DataLoader(Drawing(), num_workers=2, **{"batch_size": 4, "shuffle": True, **options})


LOADERS = {
    "global generators": lambda: DataLoader(Augmented(), 8, shuffle=True, num_workers=2),
    "own generators": drawing,
    "persistent": lambda: drawing(persistent_workers=True, generator=torch.Generator()),
    "without batches": lambda: drawing(batch_size=None, shuffle=False, sampler=RandomSampler(Drawing())),
    "own batch sampler": lambda: DataLoader(
        Drawing(), batch_sampler=BatchSampler(WeightedRandomSampler([1.0] * 20, 15), 4, False), num_workers=2
    ),
    "part": lambda: DataLoader(Subset(Subset(Drawing(), range(19)), range(17)), 4, num_workers=2),
    "stream": lambda: DataLoader(Numbers(), 4, num_workers=2),
    "stream that is set up": lambda: DataLoader(Numbers(), 4, num_workers=2, worker_init_fn=sets_start),
    "seeding": lambda: DataLoader(Augmented(), 8, num_workers=2, worker_init_fn=seeds),
    "spawned": lambda: DataLoader(Augmented(), 8, num_workers=1, multiprocessing_context="spawn"),
}


def kept(name: str) -> SeededLoader:
    return SeededLoader(LOADERS[name](), seed=3, keep_workers=True)


def batches(loader: SeededLoader, epoch: int) -> list[list[float]]:
    loader.epoch = epoch
    return [torch.cat([torch.as_tensor(part).double().flatten() for part in parts(batch)]).tolist() for batch in loader]


def parts(batch: Any) -> list[Any]:
    return list(batch) if isinstance(batch, list | tuple) else [batch]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.long] if name == "spawned" else []) for name in LOADERS]
)
def test_an_epoch_is_the_same_whatever_the_workers_did_before(name: str) -> None:
    steady = kept(name)
    first, second, third = (batches(steady, epoch) for epoch in range(3))
    assert first != second
    assert second != third
    random.seed(9)
    torch.manual_seed(9)
    resumed = kept(name)
    assert batches(resumed, 1) == second
    next(iter(resumed))  # left in the middle, while the workers are busy
    assert batches(resumed, 2) == third
    assert batches(steady, 1) == second


@pytest.mark.parametrize("name", ["global generators", "own generators", "part", "stream", "own batch sampler"])
def test_batches_are_those_of_new_workers(name: str) -> None:
    steady = kept(name)
    batches(steady, 0)
    assert batches(steady, 1) == batches(SeededLoader(LOADERS[name](), seed=3), 1)


@pytest.mark.parametrize("name", ["global generators", "stream"])
def test_an_epoch_that_is_given_again_is_the_same(name: str) -> None:
    """As after the batch that lazy layers get their sizes from."""
    again = kept(name)
    next(iter(again))
    assert batches(again, 0) == batches(kept(name), 0)


def test_a_worker_that_comes_late_to_an_epoch_does_not_begin_the_next() -> None:
    limited = SeededLoader(DataLoader(Numbers(), 4, num_workers=2, worker_init_fn=late), 3, limit=1, keep_workers=True)
    batches(limited, 0)
    limited._limit = None
    assert batches(limited, 1) == batches(kept("stream"), 1)


def test_a_loop_of_the_users_own_has_new_workers() -> None:
    dataset: Any = Drawing()
    dataset.factor = 2.0
    own, plain = (SeededLoader(kind(dataset, 4, num_workers=1), 3, keep_workers=True) for kind in (Scaled, DataLoader))
    doubled = [[2 * number for number in batch] for batch in batches(plain, 1)]
    assert batches(own, 1) == doubled


def test_the_processes_stay_and_end_with_the_loader() -> None:
    loader = SeededLoader(DataLoader(Processes(), 2, num_workers=2), seed=3, keep_workers=True)
    seen = [{int(pid) for batch in batches(loader, epoch) for pid in batch} for epoch in range(3)]
    assert len(seen[0]) == 2
    assert seen[0] == seen[1] == seen[2]
    anew = SeededLoader(DataLoader(Processes(), 2, num_workers=2, persistent_workers=True), seed=3)
    assert {*map(str, batches(anew, 0))}.isdisjoint(map(str, batches(anew, 1)))
    del loader
    assert not any(psutil.pid_exists(pid) for pid in seen[0])


@pytest.mark.long
def test_a_killed_job_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    config = evaluator(data={"target": "spaces.py:augmented", "params": {"workers": 2}, "keep_workers": True}, epochs=4)
    spec = make_job(NET, config, sample(NET, config, 2))
    whole = write_job(tmp_path / "whole", spec)
    assert run_job_file(whole) == 0
    slow = config.data.model_copy(update={"params": {"workers": 2, "pause": 0.02}})
    slowly = spec.model_copy(update={"evaluator": config.model_copy(update={"data": slow}), "data": slow})
    killed = write_job(tmp_path / "killed", slowly)
    runner = subprocess.Popen([sys.executable, "-m", "nasflow.training.runner", str(killed)])
    while sum(isinstance(event, Epoch) for event in events_of(killed)) < 4:
        assert runner.poll() is None, "it ended before it could be killed"
        time.sleep(0.01)
    workers = psutil.Process(runner.pid).children(recursive=True)
    runner.send_signal(signal.SIGKILL)
    runner.wait()
    assert run_job_file(killed) == 0
    for trial in range(2):
        one, other = (outcome(events_of(file), file.parents[2], trial) for file in (whole, killed))
        assert one == other
    psutil.wait_procs(workers, timeout=60)
    assert not any(worker.is_running() for worker in workers)
