"""What a search refuses before it begins, for `nasflow run` and `nasflow validate`."""

from nasflow.config.search import SearchConfig
from nasflow.config.services.union import each_service
from nasflow.evaluator.check import check_search
from nasflow.merge.planning.own_passes import load_passes
from nasflow.report.trial_loggers import check_loggers
from nasflow.space.architecture import Architecture
from nasflow.space.space import Space
from nasflow.strategy.base import Strategy
from nasflow.strategy.make import make_strategy, refuse_rounds_ahead
from nasflow.system.present_folder import in_folder
from nasflow.training.schedule.pruners import check_pruner
from nasflow.training_service.make import one_of_several

from ..pool.make import make_service


def checked(config: SearchConfig) -> tuple[Space, Strategy]:
    """Return the space of a search, and its strategy, new.

    Raises:
        UserError: the config can't work, whichever machine runs it.
    """
    check_pruner(config)
    check_loggers(config.loggers)
    space = check_search(config)
    with in_folder(config.base_dir):  # where jobs import them, too
        load_passes(config.merge.passes, config.base_dir)
    first = [Architecture(values) for values in config.begin_with]
    strategy = make_strategy(config.strategy, space, config.objectives, config.seed, config.base_dir, first=first)
    refuse_rounds_ahead(strategy, config)
    return space, strategy


def check_custom_services(config: SearchConfig) -> None:
    """Raise ConfigError if a training service of the user's own can't be made. A session makes its services itself."""
    sections = each_service(config.training_service)
    for place, section in enumerate(sections):
        if section.kind == "custom":
            service = make_service(section, config.study_dir, config.base_dir)
            if len(sections) > 1:
                one_of_several(place, service)
