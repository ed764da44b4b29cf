"""Make the evaluator that a config names. Ready-made ones need Lightning, which is slow to import: done on demand."""

from pathlib import Path

from nasflow.config.search import (
    ClassificationConfig,
    CustomEvaluatorConfig,
    LightningConfig,
    RegressionConfig,
    TrainingConfig,
)
from nasflow.errors import ConfigError
from nasflow.evaluator.base import Evaluator
from nasflow.load_target import check_params, load_target


def make_evaluator(config: TrainingConfig, base_dir: Path) -> Evaluator:
    """Return the evaluator of a closed config, in which every searched value is chosen.

    Raises:
        ConfigError: a user's class can't be imported, is of the wrong kind, or does not take its params.
    """
    match config:
        case ClassificationConfig():
            from nasflow.evaluator.ready_made.supervised import Classification  # noqa: PLC0415

            return Classification(config, base_dir)
        case RegressionConfig():
            from nasflow.evaluator.ready_made.supervised import Regression  # noqa: PLC0415

            return Regression(config, base_dir)
        case LightningConfig():
            from nasflow.evaluator.lightning import Lightning  # noqa: PLC0415

            return Lightning(config, base_dir)
        case CustomEvaluatorConfig():
            kind = load_target(config.target, base_dir)
            if not (isinstance(kind, type) and issubclass(kind, Evaluator)):
                raise ConfigError(
                    f"evaluator.target: {config.target} should be a nasflow.evaluator.base.Evaluator class"
                )
            check_params("evaluator.target", config.target, kind, config, **config.params)
            return kind(config, **config.params)
    raise ConfigError(f"evaluator.kind: there is no evaluator for {type(config).__name__}")
