"""Makes the members of a job, and loads what they are trained on."""

import copy
import dataclasses
from collections.abc import Callable, Iterable
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from pytorch_lightning import Trainer

from nasflow.config.evaluator.training import LimitBatchesConfig
from nasflow.config.search import DataConfig
from nasflow.errors import ConfigError
from nasflow.evaluator.callbacks import make_callbacks
from nasflow.evaluator.candidate import candidate_space
from nasflow.evaluator.lazy_layers import first_batch
from nasflow.evaluator.loading.class_balance import with_class_weights
from nasflow.evaluator.loading.data_source import Data, fingerprint, load_data
from nasflow.evaluator.make import make_evaluator
from nasflow.job.spec import JobSpec, MemberSpec
from nasflow.seeds import derive_seed
from nasflow.space.lazy_layers import lazy_layers
from nasflow.training.member.lazy_layers import complete_member
from nasflow.training.member.member import Member
from nasflow.training.member.rng import RngStream
from nasflow.training.seeded_loader import FoldedLoader, SeededLoader


class MemberMaker:
    """Makes the members of a job: lazy layers have their sizes.

    Args:
        job: the job of the members.
        data: what they are trained on.
        trainer: the job's.
    """

    def __init__(self, job: JobSpec, data: Data, trainer: Trainer):
        self._job = job
        self._data = data
        self._trainer = trainer

    def make(self, spec: MemberSpec, number: int) -> Member:
        """Return a member before its training. It does not depend on which others are made."""

        def make() -> Member:
            return make_member(self._job, spec, lambda: samples_of(self._data.of(number)))

        member = make()
        member.number = number
        if lazy_layers(member.module):
            complete_member(member, make(), self._first_batch, self._trainer)
        return member

    @cached_property
    def _first_batch(self) -> Any:
        """The first batch of the first epoch (and the first fold), whichever epoch is trained."""
        data = self._data.of(0)
        loader = copy.copy(data.train)
        if isinstance(loader, SeededLoader):
            loader.epoch = 0
        with RngStream(derive_seed(self._job.data_seed, "transfer"), _device()):
            return first_batch(dataclasses.replace(data, train=loader), self._trainer.strategy.root_device)


def make_member(job: JobSpec, spec: MemberSpec, train: Callable[[], Iterable[Any]]) -> Member:
    """Build one member, drawing its initial weights from its own stream. Lazy layers have no weights yet.

    Args:
        job: the job of the member.
        spec: the member.
        train: gives the loader of its training samples, if its evaluator asks for something about them.
    """
    rng = RngStream(spec.seed, _device())
    space = candidate_space(job.space, job.evaluator, job.base_dir)
    with rng:
        candidate = space.build(spec.architecture)
        if fingerprint(candidate.config.data) != fingerprint(job.data):
            raise ConfigError(
                f"trial {spec.trial} asks for other data than its job: {fingerprint(candidate.config.data)}"
            )
        candidate = dataclasses.replace(candidate, config=with_class_weights(candidate.config, train))
        module = make_evaluator(candidate.config, job.base_dir).module(candidate.model)
        callbacks = make_callbacks(candidate.config.callbacks, job.base_dir)
        return Member(spec.trial, module, candidate, rng, callbacks)


def samples_of(data: Data) -> Iterable[Any]:
    """Return the loader of the training samples as it was given."""
    return data.train.loader if isinstance(data.train, SeededLoader) else data.train


def load_job_data(
    config: DataConfig,
    base_dir: Path,
    seed: int,
    limits: LimitBatchesConfig | None = None,
    folds: int | None = None,
) -> Data:
    """Return the data, in an order that depends on `seed` and the epoch only, not on the job's members."""
    return seeded_data(lambda: load_data(config, base_dir, seed, folds), seed, limits)


def seeded_data(load: Callable[[], Data], seed: int, limits: LimitBatchesConfig | None = None) -> Data:
    """Return what `load` gives, in an order that depends on `seed` and the epoch only."""
    limits = limits or LimitBatchesConfig()
    with RngStream(derive_seed(seed, "data")):
        data = load()

    def seeded(loader: Iterable[Any], name: str, limit: int | None) -> SeededLoader:
        return SeededLoader(loader, derive_seed(seed, name), _device(), limit)

    def of_one(data: Data) -> Data:
        validation = None if data.validation is None else seeded(data.validation, "validation", limits.validation)
        return dataclasses.replace(data, train=seeded(data.train, "train", limits.train), validation=validation)

    if not data.folds:
        return of_one(data)
    folds: Any = tuple(map(of_one, data.folds))
    train, validation = (FoldedLoader([getattr(fold, name) for fold in folds]) for name in ("train", "validation"))
    return dataclasses.replace(data, train=train, validation=validation, folds=folds)


def _device() -> torch.device | None:
    """The device where members draw random numbers, None if only on the CPU."""
    return torch.device("cuda", 0) if torch.cuda.is_available() else None
