"""The loggers of a search's config, which receive the events of its jobs."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from nasflow.job.events import Event
from nasflow.study.records import Attempt
from nasflow.study.study import Study


@contextmanager
def logged_trials(study: Study) -> Iterator[list[Callable[[Attempt, Event], None]]]:
    """Yield the listeners that log events: none if the config has no loggers, otherwise one."""
    config = study.config
    if not config.loggers:
        yield []
        return
    from nasflow.report.trial_loggers import TrialLoggers  # noqa: PLC0415 - slow

    def epochs(trial: int) -> list[tuple[int, dict[str, float | None]]]:
        return [(record.epoch, dict(record.metrics)) for record in study.epochs([trial])[trial]]

    loggers = TrialLoggers(
        config.loggers,
        study=config.name,
        identity=study.created_at.isoformat(),
        folder=config.study_dir / "logs",
        choices=lambda trial: study.trial(trial).architecture,
        epochs=epochs,
    )
    try:
        yield [lambda attempt, event: loggers.on_event(event)]
    finally:
        loggers.close()
