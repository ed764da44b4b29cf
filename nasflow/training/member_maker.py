"""Makes the members of a job, and loads what they are trained on."""

import dataclasses
from collections.abc import Callable, Iterable
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from pytorch_lightning import Trainer

from nasflow.config.evaluator.training import LimitBatchesConfig, TrainingConfig
from nasflow.config.search import DataConfig
from nasflow.errors import ConfigError
from nasflow.evaluator.callbacks import make_callbacks
from nasflow.evaluator.candidate import candidate_space
from nasflow.evaluator.lazy_layers import first_batch
from nasflow.evaluator.loading.class_balance import with_class_weights
from nasflow.evaluator.loading.data_source import Data, fingerprint, load_data
from nasflow.evaluator.make import make_evaluator
from nasflow.evaluator.ready_made.unusable import refuse_data
from nasflow.job.spec import JobSpec, MemberSpec
from nasflow.merge.trace.counter_dropout import CounterDropout
from nasflow.seeds import derive_seed
from nasflow.space.lazy_layers import lazy_layers
from nasflow.training.batches.seeded_loader import FoldedLoader, SeededLoader
from nasflow.training.batches.shared_data import SharedData
from nasflow.training.device.devices import Devices
from nasflow.training.member.lazy_layers import complete_member
from nasflow.training.member.member import Member
from nasflow.training.member.rng import RngStream
from nasflow.training.unit.step_graph import can_capture


class MemberMaker:
    """Makes the members of a job: lazy layers have their sizes.

    Args:
        job: the job of the members.
        data: what they are trained on.
        trainer: the job's.
        kind: the class of the members.
        devices: of the job; none: there is one.
    """

    def __init__(
        self,
        job: JobSpec,
        data: Data,
        trainer: Trainer,
        kind: type[Member] = Member,
        devices: Devices | None = None,
    ):
        self._job = job
        self._devices = devices or Devices(1)
        self._kind = kind
        self._data = data
        self._trainer = trainer

    def make(self, spec: MemberSpec, number: int) -> Member:
        """Return a member before its training. It does not depend on which others are made."""

        index = self._devices.index(spec.device)
        draws_on = _drawing(self._devices.all[index])

        def make() -> Member:
            return make_member(self._job, spec, lambda: samples_of(self._data.of(number)), self._kind, draws_on)

        member = make()
        member.number, member.device_index = number, index
        if lazy_layers(member.module):
            complete_member(member, make(), self._first_batch, self._trainer, self._data.of(number))
        if self._kind is Member and self._job.merge.cuda_graphs and can_capture(self._devices.all[index]):
            CounterDropout.put_into(member.module, partial(derive_seed, spec.seed, "dropout"))
        return member

    @cached_property
    def _first_batch(self) -> Any:
        """The first batch of the first epoch (and the first fold), whichever epoch is trained.

        Raises:
            DataError: no member can be trained on it.
        """
        data = self._data.of(0)
        loader = data.train.from_start() if isinstance(data.train, SeededLoader) else data.train
        with RngStream(derive_seed(self._job.data_seed, "transfer"), _device()):
            batch = first_batch(dataclasses.replace(data, train=loader), self._trainer.strategy.root_device)
        if fingerprint(self._job.evaluator.data) == fingerprint(self._job.data):  # else others may have other data
            refuse_data(self._job.evaluator, batch)
        return batch


def make_member(
    job: JobSpec,
    spec: MemberSpec,
    train: Callable[[], Iterable[Any]],
    kind: type[Member] = Member,
    draws_on: torch.device | None = None,
) -> Member:
    """Build one member, drawing its initial weights from its own stream. Lazy layers have no weights yet.

    Args:
        job: the job of the member.
        spec: the member.
        train: gives the loader of its training samples, if its evaluator asks for something about them.
        kind: its class.
        draws_on: the GPU on which it draws random numbers; None for the first, if there is one.
    """
    rng = RngStream(spec.seed, draws_on or _device())
    space = candidate_space(job.space, job.evaluator, job.base_dir, with_values=True)
    with rng:
        candidate = space.build(spec.architecture)
        if fingerprint(candidate.config.data) != fingerprint(job.data):
            raise ConfigError(
                f"trial {spec.trial} asks for other data than its job: {fingerprint(candidate.config.data)}"
            )
        candidate = dataclasses.replace(candidate, config=with_class_weights(candidate.config, train))
        module = make_evaluator(candidate.config, job.base_dir).module(candidate.model)
        callbacks = make_callbacks(candidate.config.callbacks, job.base_dir)
        return kind(spec.trial, module, candidate, rng, callbacks)


def samples_of(data: Data) -> Iterable[Any]:
    """Return the loader of the training samples as it was given."""
    return data.train.loader if isinstance(data.train, SeededLoader) else data.train


def load_job_data(
    config: DataConfig,
    base_dir: Path,
    seed: int,
    training: TrainingConfig | None = None,
) -> Data:
    """Return the data, in an order that depends on `seed` and the epoch only, not on the job's members.

    Args:
        config: closed.
        base_dir: the folder of the user's code.
        seed: of the data's order.
        training: says what an epoch is, and how many folds there are.
    """
    folds = None if training is None else training.folds
    return seeded_data(lambda: load_data(config, base_dir, seed, folds), seed, training, config.keep_workers)


def seeded_data(
    load: Callable[[], Data], seed: int, training: TrainingConfig | None = None, keep_workers: bool = False
) -> Data:
    """Return what `load` gives, in an order that depends on `seed` and the epoch only."""
    limits = LimitBatchesConfig() if training is None else training.batch_limits
    per_epoch = None if training is None else training.batches_per_epoch
    users: dict[int, SharedData] = {}
    with RngStream(derive_seed(seed, "data")):
        data = load()

    def seeded(loader: Iterable[Any], name: str, limit: int | None, per_epoch: int | None = None) -> SeededLoader:
        own = derive_seed(seed, name)
        options: dict[str, Any] = {"keep_workers": keep_workers, "per_epoch": per_epoch, "users": users}
        return SeededLoader(loader, own, _device(), limit=limit, **options)

    def of_one(data: Data) -> Data:
        validation = None if data.validation is None else seeded(data.validation, "validation", limits.validation)
        train = seeded(data.train, "train", limits.train, per_epoch)
        return dataclasses.replace(data, train=train, validation=validation)

    if not data.folds:
        return of_one(data)
    folds: Any = tuple(map(of_one, data.folds))
    train, validation = (FoldedLoader([getattr(fold, name) for fold in folds]) for name in ("train", "validation"))
    return dataclasses.replace(data, train=train, validation=validation, folds=folds)


def _device() -> torch.device | None:
    """The first GPU, where random numbers are drawn; None if they are drawn on the CPU only."""
    return torch.device("cuda", 0) if torch.cuda.is_available() else None


def _drawing(device: torch.device) -> torch.device | None:
    return device if device.type == "cuda" else None
