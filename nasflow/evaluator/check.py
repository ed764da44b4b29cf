"""Find a config's mistakes before anything trains."""

import logging
import math
import random
import threading

import torch
from torch import nn

from nasflow.config.code_files import refuse_main, targets_of
from nasflow.config.evaluator.metrics import MetricConfig, metric_name
from nasflow.config.evaluator.target import Target
from nasflow.config.search import (
    ClassificationConfig,
    FunctionConfig,
    OptunaConfig,
    ProgramConfig,
    RegressionConfig,
    SearchConfig,
    SupervisedConfig,
    TrainingConfig,
)
from nasflow.errors import ConfigError, SpaceError, UserError
from nasflow.evaluator.callbacks import make_callbacks
from nasflow.evaluator.candidate import Candidate, candidate_space, complete_candidate
from nasflow.evaluator.function import check_program
from nasflow.evaluator.lazy_layers import first_batch
from nasflow.evaluator.loading.class_balance import with_class_weights
from nasflow.evaluator.loading.data_source import Data, fingerprint, load_data, load_test_data
from nasflow.evaluator.loading.labels import known_pair
from nasflow.evaluator.loading.subsets import last_batch, length_of
from nasflow.evaluator.make import make_evaluator
from nasflow.evaluator.ready_made.optimizers import make_schedule, parameter_groups, try_optimizer
from nasflow.evaluator.ready_made.own_parts import make_loss, make_metric
from nasflow.evaluator.ready_made.unusable import refuse_data
from nasflow.load_target import refuse_changed
from nasflow.space.architecture import Architecture
from nasflow.space.lazy_layers import lazy_layers
from nasflow.space.meta_build import for_real
from nasflow.space.space import Space
from nasflow.system.kept_generators import kept_generators
from nasflow.system.present_folder import in_folder

_MANY_CLASSES = 1000  # for metrics that are made only to find mistakes
_NSGA2_POPULATION = 50  # Optuna's default

_ONE = threading.RLock()  # a process makes one check at a time, so that data are downloaded once

logger = logging.getLogger(__name__)


def check_search(config: SearchConfig) -> Space:
    """Check that targets can be imported, the space explored and the data loaded. Return the search's space.

    One sampled candidate is built but not trained. It is built twice, to find layers that both models share.

    Raises:
        UserError: the message says what is wrong, where, and how to fix it.
    """
    if not config.base_dir.is_dir():
        raise ConfigError(f"base_dir: there is no folder {config.base_dir}; name that of your code")
    targets = targets_of(config)
    if not _runs_here(config):
        controllers = ("strategy.", "training_service.")
        refuse_main({key: target for key, target in targets.items() if not key.startswith(controllers)})
    refuse_changed(targets.values(), config.base_dir)
    with _ONE, kept_generators(), in_folder(config.base_dir):  # where relative paths start in jobs, too
        return _check_search(config)


def _runs_here(config: SearchConfig) -> bool:
    """Whether jobs import the user's code in this process alone."""
    evaluator = config.evaluator
    own_processes = isinstance(evaluator, FunctionConfig) or evaluator.parallel is not None
    return config.training_service.kind == "debug" and not own_processes


def _check_search(config: SearchConfig) -> Space:
    trains_here = config.training_service.kind == "debug" and isinstance(config.evaluator, TrainingConfig)
    space = candidate_space(config.space, config.evaluator, config.base_dir, with_values=trains_here)
    _check_metrics(config)
    _warn_of_random(config)
    for place, values in enumerate(config.begin_with):
        try:
            space.validate(Architecture(values))
        except SpaceError as error:
            raise ConfigError(f"begin_with.{place}: {error}") from None
    sampled = space.sample(random.Random(config.seed))
    other = space.validate(sampled)  # kept, so that its memory is not reused: equal addresses mean sharing
    candidate: Candidate = space.build(sampled)
    del other
    if isinstance(candidate.config, ProgramConfig):
        check_program(candidate.config, config.base_dir, config.training_service.kind in ("local", "debug"))
        return space
    data = _check_training(candidate, config)
    if data.validation is None:
        _refuse_without_validation(config)
    return space


def _refuse_without_validation(config: SearchConfig) -> None:
    """Raise ConfigError if something goes by a metric of validation data."""
    places = [("objectives", objective.metric) for objective in config.objectives]
    stopping, schedule = getattr(config.evaluator, "early_stopping", None), getattr(config.evaluator, "schedule", None)
    if stopping is not None:
        places.append(("evaluator.early_stopping", stopping.metric))
    if schedule is not None and "plateau" in getattr(schedule.name, "pick", [schedule.name]):
        places.append(("evaluator.schedule", schedule.metric))
    if config.checkpoint.best is not None:
        places.append(("checkpoint.best", config.checkpoint.best.metric))
    for place, metric in places:
        if metric.startswith("val_"):
            raise ConfigError(f"{place}: '{metric}' needs validation data, and evaluator.data gives none")


def _check_training(candidate: Candidate, config: SearchConfig) -> Data:
    """Check what trains a candidate, and return the data."""
    data = load_data(candidate.training.data, config.base_dir, config.seed, candidate.training.folds)
    _refuse_empty(data, candidate.training.data.target)
    if data.module is None and fingerprint(candidate.training.data) == fingerprint(config.evaluator.data):
        _refuse_unusable(data, candidate)
    _warn_of_batches(data, candidate)
    if candidate.training.test_data is not None:
        load_test_data(candidate.training.test_data, config.base_dir)
    if not isinstance(candidate.config, SupervisedConfig):
        make_evaluator(candidate.training, config.base_dir)
    make_callbacks(candidate.training.callbacks, config.base_dir)
    with_class_weights(candidate.config, lambda: data.train)
    if isinstance(candidate.config, ClassificationConfig | RegressionConfig):
        if isinstance(candidate.config.loss, Target):
            make_loss(candidate.config.loss, config.base_dir)
        for metric in candidate.config.metrics:
            if isinstance(metric, MetricConfig) and metric.target:
                make_metric(metric, config.base_dir, _MANY_CLASSES)
    if _has_sizes(candidate, data, config) and isinstance(candidate.config, SupervisedConfig):
        try:
            groups = parameter_groups(candidate.model, candidate.config.optimizer.no_decay)
            optimizer = try_optimizer(candidate.config.optimizer, groups, config.base_dir)
        except ValueError as error:
            raise ConfigError(f"evaluator.optimizer: {error}") from None
        accumulated = int(candidate.config.accumulate_grad_batches)  # type: ignore[arg-type]
        batches = candidate.config.batches_per_epoch or length_of(data.train)
        steps = math.ceil(batches / accumulated) if batches else math.inf
        make_schedule(candidate.config.schedule, optimizer, int(candidate.config.epochs), steps)  # type: ignore[arg-type]
    return data


def _refuse_empty(data: Data, target: str) -> None:
    """Raise ConfigError if a loader knows that it has no batch."""
    for what, loader in (("train", data.train), ("validate", data.validation)):
        if loader is not None and length_of(loader) == 0:
            raise ConfigError(
                f"evaluator.data: {target} gives no batch to {what} on; let its loader have samples, and without "
                "drop_last if they fill no batch"
            )


def _refuse_unusable(data: Data, candidate: Candidate) -> None:
    """Raise DataError for tensors that no model could be trained or scored on; jobs look at what other loaders give."""
    training = candidate.training
    limits = training.batch_limits
    in_part = limits.train or training.batches_per_epoch  # and the rest may never be loaded
    for loader, is_part, validating in ((data.train, in_part, False), (data.validation, limits.validation, True)):
        if not is_part and (pair := known_pair(loader)) is not None:
            refuse_data(candidate.config, pair, validating=validating)


def _warn_of_batches(data: Data, candidate: Candidate) -> None:
    """Warn of training batches on which candidates like this one fail."""
    target = candidate.training.data.target
    one = next((fold for fold in data.folds or (data,) if last_batch(fold.train) == 1), None)
    if one is not None and any(isinstance(part, nn.BatchNorm1d) for part in candidate.model.modules()):
        logger.warning(
            "evaluator.data: the last training batch of %s has one sample, on which BatchNorm1d fails for inputs "
            "[B, C]; let its loader drop that batch (drop_last=True), or take another batch size",
            target,
        )
    pair = known_pair(data.train) if data.module is None else None
    kinds = {parameter.dtype for parameter in candidate.model.parameters() if parameter.is_floating_point()}
    is_double = pair is not None and pair[0].dtype is torch.float64
    if is_double and kinds == {torch.float32} and candidate.training.precision != "64-true":
        logger.warning(
            "evaluator.data: %s gives inputs of torch.float64, and layers of torch.float32 refuse them; let it give "
            "x.float(), or take 'precision: 64-true'",
            target,
        )


def _has_sizes(candidate: Candidate, data: Data, config: SearchConfig) -> bool:
    """Whether a candidate's lazy layers, if any, have sizes after a batch. Raises ConfigError for one not reached."""
    if not lazy_layers(candidate.model):
        return True
    try:
        with for_real():
            complete_candidate(candidate, first_batch(data), config.base_dir)
    except UserError:
        raise
    except Exception as error:  # other candidates may succeed
        logger.warning("space '%s': a sampled candidate fails on its first batch: %s", config.space.target, error)
        return False
    return True


def _warn_of_random(config: SearchConfig) -> None:
    """Warn of a budget with which nsga2 learns nothing."""
    if not (isinstance(config.strategy, OptunaConfig) and config.strategy.kind == "nsga2"):
        return
    population = config.strategy.params.get("population_size", _NSGA2_POPULATION)
    trials = config.budget.rounds * config.budget.trials_per_round
    trials = trials if config.budget.trials is None else min(trials, config.budget.trials)
    if isinstance(population, int) and trials <= population:
        logger.warning(
            "strategy: nsga2 draws at random until %d trials have a score, and the budget has %d trials: give a "
            "smaller strategy.params.population_size, or a larger budget",
            population,
            trials,
        )


def _check_metrics(config: SearchConfig) -> None:
    """Check that the ready-made evaluators log the metrics that something goes by; others may log any."""
    tests = [objective.metric for objective in config.objectives if objective.metric.startswith("test_")]
    if tests and config.evaluator.test_data is not None:
        raise ConfigError(
            f"objectives: '{tests[0]}' begins with 'test_', as the scores on evaluator.test_data do; log it under "
            "another name, or leave evaluator.test_data out"
        )
    if not isinstance(config.evaluator, ClassificationConfig | RegressionConfig):
        return
    known = ["train_loss", "val_loss", *(f"val_{metric_name(metric)}" for metric in config.evaluator.metrics)]
    spreads = [f"{name}_std" for name in known] if config.evaluator.members_per_trial > 1 else []
    for objective in config.objectives:
        if objective.metric not in [*known, *spreads, "parameters"]:
            raise ConfigError(
                f"objectives: no metric '{objective.metric}' is logged; there are: {', '.join(known)}, parameters "
                "(evaluator.metrics adds more)"
            )
    named = [("evaluator.schedule", config.evaluator.schedule.metric)]
    if config.evaluator.early_stopping is not None:
        named.append(("evaluator.early_stopping", config.evaluator.early_stopping.metric))
    if config.checkpoint.best is not None and config.checkpoint.best.metric not in spreads:
        named.append(("checkpoint.best", config.checkpoint.best.metric))
    for place, metric in named:
        if metric not in known and not (place == "checkpoint.best" and config.evaluator.callbacks):  # which may log any
            raise ConfigError(f"{place}.metric: no metric '{metric}' is logged; there are: {', '.join(known)}")
