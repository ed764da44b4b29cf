"""What the process of one rank does: it builds the trial as all ranks do, and trains it on its shares."""

import dataclasses
import os
import time
from collections.abc import Callable, Iterable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore, Store, TCPStore

from nasflow.config.evaluator.parallel import ParallelConfig
from nasflow.config.search import TrainingConfig
from nasflow.errors import ConfigError
from nasflow.evaluator.loading.data_source import Data
from nasflow.job import activity
from nasflow.job.spec import JobSpec, MemberSpec, trial_dir
from nasflow.training.batches.seeded_loader import SeededLoader
from nasflow.training.device.settings import device_settings
from nasflow.training.lightning_loop import make_trainer
from nasflow.training.member_maker import MemberMaker, load_job_data
from nasflow.training.wide.epochs.parts import EpochCheckpoints
from nasflow.training.wide.link import Link
from nasflow.training.wide.member import WideMember
from nasflow.training.wide.module import WideModule
from nasflow.training.wide.shares import ShareLoader
from nasflow.training.wide.strategies import make_strategy

_LOADED = "nasflow loaded "  # in the store, before a rank's number
_FOREVER = timedelta(days=365)  # a FileStore takes no much longer time


@dataclasses.dataclass(frozen=True)
class Task:
    """What the ranks train.

    Attributes:
        job: the job of the trial.
        spec: the trial.
        root: below which its folder is.
        meeting: a new file by which the ranks of one machine find each other.
    """

    job: JobSpec
    spec: MemberSpec
    root: Path
    meeting: Path

    @property
    def parallel(self) -> ParallelConfig:
        """How many ranks there are, and what keeps them together."""
        found = self.job.evaluator.parallel
        if found is None:
            raise ConfigError("evaluator.parallel: there is none, so the trial needs no ranks")
        return found


def train(task: Task, rank: int, link: Link) -> None:
    """Train a trial to its end as one of its ranks. Raises whatever that raises."""
    job, evaluator = task.job, task.job.evaluator
    if job.data is None or not isinstance(evaluator, TrainingConfig):
        raise ConfigError("evaluator.data: there is none, so nasflow can't train the job's members")
    _take_device(rank % task.parallel.devices, task.parallel.devices)
    with device_settings(evaluator):
        store = _meet(task, rank, link)
        load = partial(load_job_data, job.data, job.base_dir, job.data_seed, evaluator)
        data = in_turn(load, rank, task.parallel, store)
        _join(store, rank, task.parallel.ranks)  # not before: where there is a group, data code may wait for its ranks
        _train(task, evaluator, data, rank, link)
        dist.destroy_process_group()


def in_turn(load: Callable[[], Data], rank: int, parallel: ParallelConfig, store: Store) -> Data:
    """Return what `load` gives, once all ranks have loaded.

    Rank 0 loads first, then the first ranks of the other machines, then all others at once. So no rank reads what
    another one prepares, as by a download. If one ends, so do those that wait for it. For `limits`, each of these turns
    counts by itself.

    Args:
        store: of all ranks.
    """
    firsts = range(0, parallel.ranks, parallel.devices)
    others = [other for other in range(parallel.ranks) if other not in firsts]
    turns = [turn for turn in ([0], [*firsts[1:]], others) if turn]
    loaded: list[Data] = []
    began = time.monotonic()
    for turn in turns:
        if rank in turn:
            try:
                loaded.append(load())
            finally:
                store.set(f"{_LOADED}{rank}", "")
        store.wait([f"{_LOADED}{other}" for other in turn], _FOREVER)
        if rank == 0:  # which is on the job's machine
            activity.excuse((now := time.monotonic()) - began)
            began = now
    return loaded[0]


def _train(task: Task, evaluator: TrainingConfig, data: Data, rank: int, link: Link) -> None:
    job, ranks = task.job, task.parallel.ranks
    trainer = make_trainer(evaluator.precision, make_strategy(task.parallel), ranks)
    member: Any = MemberMaker(job, data, trainer, WideMember).make(task.spec, task.spec.trial)
    member.seed = task.spec.seed
    folder = trial_dir(task.root, task.spec.trial)
    apart = job.node is not None and not job.node.shares_files
    per_machine = task.parallel.devices if apart else None
    checkpoints = EpochCheckpoints(folder, job.generation, max(2, job.checkpoint.keep), per_machine)
    shares = _shares_of(data, rank, ranks)
    module = WideModule(member, shares, checkpoints, link)
    trainer.fit(module, shares.train, shares.validation)
    if not member.finished:
        raise ConfigError("evaluator.data: there is no batch to train on; let its loader have samples")


def _take_device(rank: int, ranks: int) -> None:
    """Let this process see its GPU only; without any, give it its share of the threads."""
    gpus = torch.cuda.device_count()  # does not initialize CUDA
    if not gpus:
        torch.set_num_threads(max(1, torch.get_num_threads() // ranks))
        return
    if gpus < ranks:
        raise ConfigError(f"evaluator.parallel.devices: it is {ranks}, and the job has {gpus} GPUs; give it as many")
    visible = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(gpus)))
    os.environ["CUDA_VISIBLE_DEVICES"] = visible.split(",")[rank]


def _meet(task: Task, rank: int, link: Link) -> Store:
    """Return the store by which ranks find each other: a file on one machine, a server of rank 0 on several.

    Lightning gets to know the place of this one: a node for each process, with one device.
    """
    os.environ |= {"NODE_RANK": str(rank), "LOCAL_RANK": "0"}
    os.environ.setdefault("GLOO_SOCKET_IFNAME", link.interface)
    if task.parallel.nodes > 1:
        os.environ.setdefault("NCCL_SOCKET_IFNAME", f"={link.interface}")
    ranks = task.parallel.ranks
    if task.parallel.nodes == 1:
        return FileStore(str(task.meeting), ranks)
    if rank:
        return TCPStore(link.host, int(link.take()), ranks, is_master=False)
    store = TCPStore(link.host, 0, ranks, is_master=True, wait_for_workers=False)
    link.give(store.port)
    return store


def _join(store: Store, rank: int, ranks: int) -> None:
    """Make the process group."""
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=ranks)


def _shares_of(data: Data, rank: int, ranks: int) -> Data:
    def shares(loader: Iterable[Any] | None) -> Any:
        return ShareLoader(loader, rank, ranks) if isinstance(loader, SeededLoader) else loader

    return dataclasses.replace(data, train=shares(data.train), validation=shares(data.validation))
