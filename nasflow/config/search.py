"""The search config: one YAML file, or the same as a Python object, says everything about a search."""

from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

import yaml
from pydantic import Field, PositiveFloat, PositiveInt, ValidationError, field_validator, model_validator

from nasflow.config.errors import explain
from nasflow.config.evaluator import (
    ClassificationConfig,
    CustomEvaluatorConfig,
    DataConfig,
    Direction,
    EarlyStoppingConfig,
    EvaluatorConfig,
    LightningConfig,
    OptimizerConfig,
    RegressionConfig,
    ScheduleConfig,
    SupervisedConfig,
    Target,
    TrainingConfig,
    to_loss,
)
from nasflow.config.services import LocalServiceConfig, ServiceConfig
from nasflow.config.strategy import (
    CustomPrunerConfig,
    CustomStrategyConfig,
    EvolutionConfig,
    GridConfig,
    HalvingPrunerConfig,
    MedianPrunerConfig,
    OptunaConfig,
    PrunerConfig,
    RandomConfig,
    StrategyConfig,
)
from nasflow.config.values import Section
from nasflow.errors import ConfigError

__all__ = [
    "Budget",
    "CheckpointConfig",
    "ClassificationConfig",
    "CustomEvaluatorConfig",
    "CustomPrunerConfig",
    "CustomStrategyConfig",
    "DataConfig",
    "EarlyStoppingConfig",
    "EvaluatorConfig",
    "EvolutionConfig",
    "GridConfig",
    "HalvingPrunerConfig",
    "LightningConfig",
    "MedianPrunerConfig",
    "MergeConfig",
    "Objective",
    "OptimizerConfig",
    "OptunaConfig",
    "PrunerConfig",
    "RandomConfig",
    "RecurringConfig",
    "RegressionConfig",
    "RetryConfig",
    "ScheduleConfig",
    "SearchConfig",
    "StrategyConfig",
    "SupervisedConfig",
    "Target",
    "TrainingConfig",
    "load_config",
    "parse_config",
]

NAME_LENGTH = 100
DATED_LENGTH = 24
"""How many characters date, time and a count add to the name of a study."""


class Objective(Section):
    """A final metric and which way is better."""

    metric: str = Field(default="val_accuracy", description="one that is logged after the last epoch, or parameters")
    direction: Direction = Field(default="maximize", description="which way is better")

    def to_loss(self, value: float) -> float:
        """Return a value of the metric with the sign that makes lower better."""
        return to_loss(value, self.direction)


class Budget(Section):
    """The search ends at the first limit it meets. No round starts after `hours` of rounds."""

    rounds: PositiveInt = Field(default=3, description="sampling rounds")
    trials_per_round: PositiveInt = Field(default=16, description="architectures that a round tries")
    trials: PositiveInt | None = Field(
        default=None, description="of all rounds together, repeated architectures among them"
    )
    hours: PositiveFloat | None = Field(default=None, description="of rounds, after which no new one starts")


class MergeConfig(Section):
    """How trials share jobs. `enabled: false` trains each trial in a job of its own."""

    enabled: bool = Field(default=True, description="false trains each trial in a job of its own")
    max_members: PositiveInt = Field(default=16, description="trials of a job that train at a time")
    jobs_per_slot: PositiveInt = Field(
        default=1,
        description="jobs that a round makes for each slot; of more, smaller ones fast hosts take more",
    )
    fuse: Literal["measured", "always", "never"] = Field(
        default="measured",
        description="run equal operations of several members as one kernel: where that was measured to be faster",
    )
    verify: Literal["start", "epoch", "never"] = Field(
        default="start",
        description="compare fused trials with their own models before the first step; `epoch`: also one of each unit "
        "at the beginning of every epoch",
    )
    passes: list[str] = Field(default=[], description="import paths of passes over the logical plan (docs/merging.md)")


class RetryConfig(Section):
    """How often failed work is tried again, and after which delays in seconds (the last one repeats)."""

    batch: int = Field(default=3, ge=0, description="restarts of a batch that was lost to its infrastructure")
    alone: int = Field(default=2, ge=0, description="retries of a failed trial on its own")
    delay_seconds: list[Annotated[float, Field(ge=0)]] = Field(
        default=[1.0, 5.0, 15.0], min_length=1, max_length=50, description="before each retry; the last one repeats"
    )


class CheckpointConfig(Section):
    """Every trial is checkpointed after init, every `every_epochs` epochs, and at the end; the `keep` newest stay."""

    every_epochs: PositiveInt = Field(default=1, description="epochs between two checkpoints of a trial")
    every_minutes: PositiveFloat | None = Field(
        default=None, description="also after an epoch that ends so long after the last checkpoint"
    )
    keep: PositiveInt = Field(default=2, description="newest checkpoints of a trial that stay")
    best: Objective | None = Field(default=None, description="the checkpoint of the epoch that is best by this stays")
    url: str | None = Field(
        default=None,
        description="checkpoints are copied there, too: any storage that fsspec knows, as s3://bucket/folder",
    )

    @field_validator("url")
    @classmethod
    def _without_secrets(cls, url: str | None) -> str | None:
        if url is not None and "://" not in url:
            raise ValueError(f"'{url}' is no URL; give one such as s3://bucket/folder or file:///folder")
        if url is not None and urlsplit(url).password is not None:
            raise ValueError(
                "it has a password in it, which would be recorded; set it in the storage's own settings instead"
            )
        return url


class RecurringConfig(Section):
    """What each run of a deployment does with the study. Other runs resume the study of the name, as without it."""

    study: Literal["new", "continue", "warm_start"] = Field(
        default="new",
        description="new: a study of its own, named by date and time; continue: the study of the name goes on, and the "
        "budget counts for each run; warm_start: new, and it begins with the best architectures of the earlier ones",
    )
    best: PositiveInt = Field(
        default=8, description="how many architectures a warm start takes from the earlier studies"
    )


LoggerName = Literal["csv", "tensorboard", "mlflow"]


class SearchConfig(Section):
    """Everything about one search. Running the same name again resumes its study."""

    name: str = Field(pattern=rf"^[A-Za-z0-9][A-Za-z0-9._-]{{0,{NAME_LENGTH - 1}}}$", description="the study")
    space: Target = Field(description="build(pick, **params), which gives a model")
    evaluator: EvaluatorConfig = Field(description="how a candidate is trained and scored")
    strategy: StrategyConfig = Field(default=RandomConfig(), description="which candidates are tried")
    objectives: list[Objective] = Field(default=[Objective()], min_length=1, description="what the search is for")
    budget: Budget = Field(default=Budget(), description="when the search ends")
    begin_with: list[dict[str, Any]] = Field(
        default=[], description="architectures that are tried first, as JSON objects: label and value of every choice"
    )
    recurring: RecurringConfig | None = Field(
        default=None, description="what each run of a deployment does; none: it resumes the study of the name"
    )
    merge: MergeConfig = Field(default=MergeConfig(), description="how trials share jobs")
    pruner: PrunerConfig | None = Field(
        default=None, description="stops trials that do worse than others; none: each trains to its end"
    )
    retry: RetryConfig = Field(default=RetryConfig(), description="how often failed work is tried again")
    training_service: ServiceConfig = Field(default=LocalServiceConfig(), description="where jobs run")
    checkpoint: CheckpointConfig = Field(
        default=CheckpointConfig(), description="which checkpoints are kept, and where"
    )
    loggers: list[LoggerName] = Field(
        default=[], description="learning curves are also written there, a run a trial, by Lightning's own loggers"
    )
    store: str = Field(default="sqlite:///nasflow.db", description="SQLAlchemy URL of the study's database")
    work_dir: Path = Field(
        default=Path("nasflow-runs"), description="folder for jobs and checkpoints, one sub-folder a study"
    )
    base_dir: Path = Field(
        default=Path(),
        description="where file.py targets are looked for; set to the config's folder when read from a file",
    )
    seed: int = Field(default=0, description="everything random follows from it")

    @field_validator("work_dir", "base_dir")
    @classmethod
    def _absolute(cls, path: Path) -> Path:
        return path.expanduser().absolute()

    @field_validator("objectives")
    @classmethod
    def _metrics_once(cls, objectives: list[Objective]) -> list[Objective]:
        names = [objective.metric for objective in objectives]
        if len(set(names)) < len(names):
            raise ValueError("each metric can be an objective once")
        return objectives

    @model_validator(mode="after")
    def _room_for_a_date(self) -> "SearchConfig":
        dated = self.recurring is not None and self.recurring.study != "continue"
        if dated and len(self.name) > NAME_LENGTH - DATED_LENGTH:
            raise ValueError(f"'name' gets a date, so it may have {NAME_LENGTH - DATED_LENGTH} characters at most")
        return self

    @property
    def study_dir(self) -> Path:
        """The folder of this study's jobs and checkpoints."""
        return self.work_dir / self.name


def parse_config(values: dict[str, Any], source: str = "config") -> SearchConfig:
    """Return the validated config.

    Raises:
        ConfigError: names every wrong key and, for an unknown one, the nearest known.
    """
    try:
        return SearchConfig.model_validate(values)
    except ValidationError as error:
        raise ConfigError(f"{source}: {explain(error, SearchConfig)}") from None


def load_config(path: Path) -> SearchConfig:
    """Read a YAML file; `base_dir` becomes its folder unless the file sets it. Raises ConfigError."""
    try:
        values = yaml.safe_load(path.read_text())
    except OSError as error:
        raise ConfigError(f"{path}: can't be read: {error.strerror}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: should hold a mapping that starts with 'name:', 'space:' and 'evaluator:'")
    return parse_config({"base_dir": path.resolve().parent, **values}, str(path))
