"""The result of a search in Python: the best trials, with their trained models."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import nn

from nasflow.config.search import SearchConfig
from nasflow.job.spec import trial_dir
from nasflow.report.export.folder import export_model, refuse_export
from nasflow.space.architecture import Architecture
from nasflow.study.study import Study
from nasflow.training.member.trained import other_weights, trained_model, trained_weights
from nasflow.trial import Trial


class BestTrial:
    """A scored trial with its trained model."""

    def __init__(self, config: SearchConfig, trial: Trial):
        self.trial = trial
        self._config = config

    @property
    def architecture(self) -> Architecture:
        """The trial's architecture."""
        return self.trial.architecture

    @property
    def metrics(self) -> dict[str, float]:
        """The final metrics, including `parameters`."""
        return dict(self.trial.metrics)

    @property
    def model(self) -> nn.Module:
        """The trained model, in eval mode on the CPU, loaded at each access.

        Raises:
            CheckpointError: the trial's last checkpoint is gone or can't be read.
            ConfigError: this process has imported an earlier version of the model's code than there is now.
        """
        return trained_model(self._config, self.trial, self._weights())

    @property
    def checkpoint(self) -> Path:
        """The folder of the trial's checkpoints."""
        number = self.trial.number if self.trial.replayed_from is None else self.trial.replayed_from
        return trial_dir(self._config.study_dir, number)

    def export(self, out: Path | str) -> Path:
        """Write weights, architecture and a script that rebuilds and scores the model into the folder `out`.

        With `evaluator.repeats` or `evaluator.folds`, these are the weights of the first seed or fold, with its own
        metrics.

        Raises:
            CheckpointError: as `model`.
            UserError: `out` exists and is not an export.
        """
        weights, trial = self._weights(), self.trial
        if self._config.evaluator.members_per_trial > 1:
            from nasflow.training.repeated import first_metrics  # noqa: PLC0415 - imports Lightning

            trial = trial.model_copy(update={"metrics": first_metrics(self.checkpoint)})
        return export_model(Path(out), trial, self._config, weights, other_weights(self.checkpoint))

    def _weights(self) -> dict[str, Any]:
        refuse_export(self._config)
        return trained_weights(self.checkpoint)

    def __repr__(self) -> str:
        return f"BestTrial({self.trial.number}, {self.metrics}, {dict(self.architecture)})"


class SearchResult:
    """A study's results. They are read from the store at each access, so they include later runs of the search.

    Args:
        config: config of the study.
    """

    def __init__(self, config: SearchConfig):
        self.config = config

    @property
    def best(self) -> BestTrial:
        """The best trial; with several objectives, the trial of the Pareto front that is best in the first one."""
        return self.leaderboard(1)[0]

    def leaderboard(self, limit: int = 10) -> list[BestTrial]:
        """Return up to `limit` trials, best first."""
        study = self._study()
        try:
            return [BestTrial(study.config, trial) for trial in study.leaderboard(limit)]
        finally:
            study.close()

    def trials(self) -> Sequence[Trial]:
        """Return all trials, sorted by number."""
        study = self._study()
        try:
            return study.trials()
        finally:
            study.close()

    def _study(self) -> Study:
        return Study.load(self.config.store, self.config.name)

    def __repr__(self) -> str:
        return f"SearchResult({self.config.name!r})"
