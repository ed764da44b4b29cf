"""Find a config's mistakes before anything trains."""

import random

from nasflow.config import ClassificationConfig, RegressionConfig, SearchConfig, SupervisedConfig
from nasflow.errors import ConfigError, SpaceError
from nasflow.evaluator.candidate import Candidate, candidate_space
from nasflow.evaluator.feed import load_data
from nasflow.evaluator.make import make_evaluator
from nasflow.evaluator.optimizers import make_schedule, try_optimizer
from nasflow.space.architecture import Architecture
from nasflow.space.space import Space


def check_search(config: SearchConfig) -> Space:
    """The space of a search whose targets import, whose space can be explored, and whose data loads.

    One sampled candidate is built, not trained; twice, for layers that both have in common to be found.

    Raises:
        UserError: what is wrong, where, and how to mend it.
    """
    space = candidate_space(config.space, config.evaluator, config.base_dir)
    _check_metrics(config)
    for place, values in enumerate(config.begin_with):
        try:
            space.validate(Architecture(values))
        except SpaceError as error:
            raise ConfigError(f"begin_with.{place}: {error}") from None
    sampled = space.sample(random.Random(config.seed))
    other = space.validate(sampled)  # kept while the next one is built: an array that is wrapped twice has one memory
    candidate: Candidate = space.build(sampled)
    del other
    if not isinstance(candidate.config, SupervisedConfig):
        make_evaluator(candidate.config, config.base_dir)
    else:
        optimizer = try_optimizer(candidate.config.optimizer, candidate.model.parameters())
        make_schedule(candidate.config.schedule, optimizer, 1)
    data = load_data(candidate.config.data, config.base_dir)
    needs_validation = [o.metric for o in config.objectives if o.metric.startswith("val_")]
    if data.validation is None and needs_validation:
        raise ConfigError(f"objectives: '{needs_validation[0]}' needs validation data, and evaluator.data gives none")
    return space


def _check_metrics(config: SearchConfig) -> None:
    """Objectives and early stopping name metrics that the ready-made evaluators log; others log what they like."""
    if not isinstance(config.evaluator, ClassificationConfig | RegressionConfig):
        return
    known = ["train_loss", "val_loss", *(f"val_{name}" for name in config.evaluator.metrics)]
    for objective in config.objectives:
        if objective.metric not in [*known, "parameters"]:
            raise ConfigError(
                f"objectives: no metric '{objective.metric}' is logged; there are: {', '.join(known)}, parameters "
                "(evaluator.metrics adds more)"
            )
    stopping = config.evaluator.early_stopping
    if stopping is not None and stopping.metric not in known:
        raise ConfigError(
            f"evaluator.early_stopping.metric: no metric '{stopping.metric}' is logged; there are: {', '.join(known)}"
        )
