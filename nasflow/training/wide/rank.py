"""What the process of one rank does: it builds the trial as all ranks do, and trains it on its shares."""

import dataclasses
import os
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
        store = _join(task, rank, link)
        load = partial(load_job_data, job.data, job.base_dir, job.data_seed, evaluator)
        _train(task, evaluator, in_turn(load, rank, task.parallel.devices, store), rank, link)
        dist.destroy_process_group()


def in_turn(load: Callable[[], Data], rank: int, per_machine: int, store: Store) -> Data:
    """Return what `load` gives: first on rank 0, then on the first rank of each machine, then on all others.

    So no rank reads what another one prepares, as by a download. If one ends, so do those that wait for it.

    Args:
        per_machine: how many ranks a machine has.
        store: of all ranks.
    """
    first = rank - rank % per_machine
    if rank:
        store.wait([f"{_LOADED}{first if rank != first else 0}"], _FOREVER)
    try:
        return load()
    finally:
        store.set(f"{_LOADED}{rank}", "")


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


def _join(task: Task, rank: int, link: Link) -> Store:
    """Make the process group, and return the store by which its ranks have found each other.

    Lightning gets to know its place in it: a node for each process, with one device.
    """
    os.environ |= {"NODE_RANK": str(rank), "LOCAL_RANK": "0"}
    os.environ.setdefault("GLOO_SOCKET_IFNAME", link.interface)
    if task.parallel.nodes > 1:
        os.environ.setdefault("NCCL_SOCKET_IFNAME", f"={link.interface}")
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    store = _store(task, rank, link)
    dist.init_process_group(backend, store=store, rank=rank, world_size=task.parallel.ranks)
    return store


def _store(task: Task, rank: int, link: Link) -> Store:
    """Return where the ranks find each other: a file on one machine, a server of rank 0 on several."""
    ranks = task.parallel.ranks
    if task.parallel.nodes == 1:
        return FileStore(str(task.meeting), ranks)
    if rank:
        return TCPStore(link.host, int(link.take()), ranks, is_master=False)
    store = TCPStore(link.host, 0, ranks, is_master=True, wait_for_workers=False)
    link.give(store.port)
    return store


def _shares_of(data: Data, rank: int, ranks: int) -> Data:
    def shares(loader: Iterable[Any] | None) -> Any:
        return ShareLoader(loader, rank, ranks) if isinstance(loader, SeededLoader) else loader

    return dataclasses.replace(data, train=shares(data.train), validation=shares(data.validation))
