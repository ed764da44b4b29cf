"""Learning curves in experiment trackers, through Lightning's own loggers: one run for each trial.

The controller writes them from the events of jobs. So a trial is logged in the same way whether it trained alone or
merged, all runs are in one place whatever machine trained them, and training never waits for a tracker.
"""

import logging
import os
import re
import shutil
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nasflow.config.search import LoggerName
from nasflow.errors import ConfigError
from nasflow.job.events import Epoch, Event, Evicted, Final
from nasflow.json_metrics import finite_metrics

if TYPE_CHECKING:
    from pytorch_lightning.loggers import Logger

Metrics = Mapping[str, float | None]

_LOG = logging.getLogger(__name__)
_PACKAGES = {"tensorboard": "tensorboard", "mlflow": "mlflow"}
_NOT_IN_MLFLOW = re.compile(r"[^\w\-. /]")  # characters that are not allowed in the name of a param
_STUDY_TAG, _TRIAL_TAG = "nasflow.study", "nasflow.trial"


def check_loggers(names: Iterable[LoggerName]) -> None:
    """Raise ConfigError if the package of one of these loggers is missing."""
    for name in names:
        if name in _PACKAGES and find_spec(_PACKAGES[name]) is None:
            raise ConfigError(f"loggers: '{name}' needs a package that is not installed: pip install 'nasflow[{name}]'")


@dataclass
class _Log:
    """A trial's logger, and the last epoch that it has logged."""

    logger: "Logger"
    last: int = 0

    def add(self, epochs: Iterable[tuple[int, Metrics]]) -> None:
        """Log new epochs and save them, so that they survive if this process is killed."""
        for epoch, metrics in epochs:
            if epoch > self.last:
                self.logger.log_metrics(finite_metrics(metrics), step=epoch)
                self.last = epoch
        self.logger.save()


class TrialLoggers:
    """Logs the trials of one study. It is thread-safe.

    Each epoch is logged once, even if a search is resumed: when a trial continues, its run on disk is rewritten from
    the study's record, and a tracking server is asked which epochs it has. If a tracker fails, a warning is logged and
    the tracker is not used for the rest of the session; the search continues.

    Args:
        names: names of the loggers.
        study: name of the study.
        identity: distinguishes studies of the same name.
        folder: for runs on disk; MLflow's runs go to `MLFLOW_TRACKING_URI` if that is set.
        choices: returns the architecture of a trial.
        epochs: returns the recorded epochs of a trial, as pairs of an epoch and its metrics.
    """

    def __init__(
        self,
        names: Iterable[LoggerName],
        *,
        study: str,
        identity: str,
        folder: Path,
        choices: Callable[[int], Mapping[str, Any]],
        epochs: Callable[[int], Sequence[tuple[int, Metrics]]],
    ):
        self._names = list(dict.fromkeys(names))
        check_loggers(self._names)
        self._study, self._identity, self._folder = study, identity, folder
        self._choices, self._epochs = choices, epochs
        self._logs: dict[tuple[LoggerName, int], _Log | None] = {}
        self._lock = threading.Lock()

    def on_event(self, event: Event) -> None:
        """Log an event of a trial, after the study has recorded its epochs."""
        if isinstance(event, Epoch | Final | Evicted):
            with self._lock:
                for name in list(self._names):
                    try:
                        self._log(name, event)
                    except Exception as error:  # trackers raise all kinds of errors
                        self._names.remove(name)
                        _LOG.warning("trials are no longer logged to %s: %s: %s", name, type(error).__name__, error)

    def close(self) -> None:
        """Close the runs of unfinished trials. They are continued when the trials are."""
        with self._lock:
            for (name, _), log in self._logs.items():
                if log is not None and name in self._names:
                    log.logger.finalize("KILLED")
            self._logs.clear()

    def _log(self, name: LoggerName, event: Epoch | Final | Evicted) -> None:
        trial = event.trial
        if (name, trial) not in self._logs:
            self._logs[name, trial] = log = self._open(name, trial)
            if log is not None:
                log.add(self._epochs(trial))
        log = self._logs[name, trial]
        if isinstance(event, Epoch):
            if log is not None:
                log.add([(event.epoch, event.metrics)])
            return
        del self._logs[name, trial]
        if log is not None and isinstance(event, Final):
            _log_final(log.logger, self._choices(trial), event)
        if log is not None:
            log.logger.finalize("success" if isinstance(event, Final) else "failed")

    def _open(self, name: LoggerName, trial: int) -> _Log | None:
        """Open a trial's log; None if it is already complete."""
        if name == "mlflow":
            return self._open_mlflow(trial)
        from pytorch_lightning.loggers import CSVLogger, TensorBoardLogger  # noqa: PLC0415 - slow

        version = f"trial-{trial:05d}"
        shutil.rmtree(self._folder / name / version, ignore_errors=True)
        if name == "tensorboard":
            return _Log(TensorBoardLogger(self._folder, name, version, default_hp_metric=False))
        logger = CSVLogger(self._folder, name, version, flush_logs_every_n_steps=1)
        logger.log_hyperparams(dict(self._choices(trial)))
        return _Log(logger)

    def _open_mlflow(self, trial: int) -> _Log | None:
        from mlflow.tracking import MlflowClient  # noqa: PLC0415 - slow
        from pytorch_lightning.loggers import MLFlowLogger  # noqa: PLC0415 - slow

        uri = os.environ.get("MLFLOW_TRACKING_URI") or f"file:{self._folder / 'mlflow'}"
        client = MlflowClient(uri)
        tags = {_STUDY_TAG: self._identity, _TRIAL_TAG: str(trial)}
        experiment = client.get_experiment_by_name(self._study)
        query = " and ".join(f"tags.`{name}` = '{value}'" for name, value in tags.items())
        known = client.search_runs([experiment.experiment_id], query, max_results=1) if experiment else []
        if not known:
            logger = MLFlowLogger(self._study, f"trial {trial}", tracking_uri=uri, tags=tags)
            logger.log_hyperparams({_NOT_IN_MLFLOW.sub("_", k): v for k, v in self._choices(trial).items()})
            return _Log(logger)
        run = known[0]
        if run.info.status == "FINISHED":
            return None
        client.update_run(run.info.run_id, status="RUNNING")
        points = [point for key in run.data.metrics for point in client.get_metric_history(run.info.run_id, key)]
        logger = MLFlowLogger(self._study, tracking_uri=uri, run_id=run.info.run_id)
        return _Log(logger, max((point.step for point in points), default=0))


def _log_final(logger: "Logger", choices: Mapping[str, Any], final: Final) -> None:
    """Log the final metrics under their own names. TensorBoard gets them with the choices, to compare these."""
    from pytorch_lightning.loggers import CSVLogger, TensorBoardLogger  # noqa: PLC0415 - slow

    metrics = {f"final/{name}": value for name, value in final.metrics.items()}
    if isinstance(logger, TensorBoardLogger):
        logger.log_hyperparams(dict(choices), metrics, step=final.epochs)
    elif not isinstance(logger, CSVLogger):
        logger.log_metrics(metrics, step=final.epochs)
