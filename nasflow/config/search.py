"""The search config: one YAML file, or the same as a Python object, says everything about a search."""

import re
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError, field_validator, model_validator

from nasflow.config.budget import Budget
from nasflow.config.checkpoint import CheckpointConfig
from nasflow.config.devices import (
    as_given,
    devices_of_a_job,
    refuse_unlike,
    sections_of,
    with_devices,
    without_devices,
)
from nasflow.config.evaluator.optimizer import OptimizerConfig
from nasflow.config.evaluator.own import CustomEvaluatorConfig, LightningConfig
from nasflow.config.evaluator.program import CommandConfig, FunctionConfig, ProgramConfig
from nasflow.config.evaluator.schedule import ScheduleConfig
from nasflow.config.evaluator.supervised import ClassificationConfig, RegressionConfig, SupervisedConfig
from nasflow.config.evaluator.target import Target
from nasflow.config.evaluator.training import DataConfig, EarlyStoppingConfig, TrainingConfig
from nasflow.config.evaluator.union import EvaluatorConfig
from nasflow.config.limits import LimitsConfig
from nasflow.config.merge import MergeConfig
from nasflow.config.objective import Objective
from nasflow.config.reading.errors import explain
from nasflow.config.reading.recordable import as_recorded, refuse_unrecordable
from nasflow.config.reading.yaml_file import read_yaml
from nasflow.config.recurring import RecurringConfig
from nasflow.config.retry import RetryConfig
from nasflow.config.secret.secret_url import SecretUrl
from nasflow.config.secret.secrets import SecretLocation
from nasflow.config.services.local import LocalServiceConfig
from nasflow.config.services.union import ServiceConfig
from nasflow.config.strategy import (
    CustomPrunerConfig,
    CustomStrategyConfig,
    EvolutionConfig,
    GridConfig,
    HalvingPrunerConfig,
    HyperbandConfig,
    MedianPrunerConfig,
    OptunaConfig,
    PrunerConfig,
    RandomConfig,
    StrategyConfig,
)
from nasflow.config.values import Options, Section
from nasflow.errors import ConfigError
from nasflow.system.present_folder import absolute, folder_outside

__all__ = [
    "Budget",
    "CheckpointConfig",
    "ClassificationConfig",
    "CommandConfig",
    "CustomEvaluatorConfig",
    "CustomPrunerConfig",
    "CustomStrategyConfig",
    "DataConfig",
    "EarlyStoppingConfig",
    "EvaluatorConfig",
    "EvolutionConfig",
    "FunctionConfig",
    "GridConfig",
    "HalvingPrunerConfig",
    "HyperbandConfig",
    "LightningConfig",
    "LimitsConfig",
    "MedianPrunerConfig",
    "MergeConfig",
    "Objective",
    "OptimizerConfig",
    "OptunaConfig",
    "ProgramConfig",
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
_SQLITE_FILE = re.compile(r"(?P<driver>sqlite(\+\w+)?:///)(?P<file>[^/?][^?]*)(?P<query>(\?.*)?)", re.DOTALL)
"""The URL of a SQLite file with a relative path."""

LoggerName = Literal["csv", "tensorboard", "mlflow"]
"""Lightning's loggers that a search can write to."""


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
    limits: LimitsConfig = Field(default=LimitsConfig(), description="how long jobs and their parts may take")
    training_service: ServiceConfig = Field(default=LocalServiceConfig(), description="where jobs run")
    checkpoint: CheckpointConfig = Field(
        default=CheckpointConfig(), description="which checkpoints are kept, and where"
    )
    loggers: list[LoggerName] = Field(
        default=[], description="learning curves are also written there, a run a trial, by Lightning's own loggers"
    )
    store: SecretLocation = Field(
        default=SecretUrl("sqlite:///nasflow.db"),
        description="SQLAlchemy URL of the study's database; one with a password may be {env: NAME} or "
        "{prefect_block: NAME}; a relative file is in the folder where the search is started",
    )
    work_dir: Path = Field(
        default=Path("nasflow-runs"),
        description="folder for jobs and checkpoints, one sub-folder a study; relative to the folder where the search "
        "is started",
    )
    base_dir: Path = Field(
        default=Path(),
        description="where file.py targets are looked for; set to the config's folder when read from a file",
    )
    seed: int = Field(default=0, description="everything random follows from it")

    @field_validator("training_service", mode="before")
    @classmethod
    def _several_services(cls, service: Any) -> Any:
        return {"kind": "several", "services": service} if isinstance(service, list) else service

    @model_validator(mode="before")
    @classmethod
    def _recordable(cls, values: Any) -> Any:
        refuse_unrecordable(values)
        return as_recorded(values)  # so that code gets the same params in this process and in jobs

    @model_validator(mode="after")
    def _forget_derived(self) -> "SearchConfig":
        """Drop what an earlier config has derived in a section, for it may follow otherwise in this one."""
        self.__dict__["evaluator"] = self.evaluator.as_given()  # the config is frozen from now on
        self.__dict__["merge"] = self.merge.as_given()
        self.__dict__["training_service"] = as_given(self.training_service)
        self.model_fields_set.update(("store", "work_dir", "base_dir"))  # a copy keeps them in any present folder
        return self

    @model_validator(mode="after")
    def _rungs(self) -> "SearchConfig":
        """Let trials of a strategy that compares them on the way end there."""
        if not isinstance(self.strategy, HyperbandConfig):
            return self
        if isinstance(self.evaluator, FunctionConfig | CommandConfig):
            raise ValueError(
                f"strategy: {self.strategy.kind} ends trials and goes on with the best, which evaluator.kind "
                f"{self.evaluator.kind} does not allow; choose another strategy, and a pruner"
            )
        if self.evaluator.stop_after is None:
            if not isinstance(self.evaluator.epochs, int):
                raise ValueError(
                    f"strategy: {self.strategy.kind} needs a number as evaluator.epochs, which it searches"
                )
            if self.strategy.min_epochs > self.evaluator.epochs:
                raise ValueError(
                    f"strategy: 'min_epochs' is {self.strategy.min_epochs}, more than evaluator.epochs, "
                    f"{self.evaluator.epochs}: no trials would be compared before their end; choose fewer"
                )
            rungs = self.strategy.rungs(self.evaluator.epochs)
            if wrong := [rung for rung in rungs if rung % self.evaluator.validate_every]:
                raise ValueError(
                    f"strategy: {self.strategy.kind} compares trials after {wrong[0]} epochs, which "
                    f"evaluator.validate_every, {self.evaluator.validate_every}, does not divide; choose another "
                    "strategy.min_epochs"
                )
            self.__dict__["evaluator"] = self.evaluator.derived(stop_after=Options[int](pick=rungs))
        return self

    @model_validator(mode="after")
    def _several_devices(self) -> "SearchConfig":
        """Give each job as many devices of the service as a trial that is trained on several has."""
        parallel = self.evaluator.parallel
        if parallel is None:
            return self
        self.__dict__["training_service"] = with_devices(self.training_service, parallel)
        if isinstance(self.strategy, HyperbandConfig):
            raise ValueError(
                f"strategy: {self.strategy.kind} goes on with ended trials, which evaluator.parallel can't do yet; "
                "choose another strategy"
            )
        if self.pruner is not None:
            raise ValueError(
                "pruner: it compares trials that share a job, but evaluator.parallel gives each its own; drop one of "
                "them"
            )
        for key in ("best", "url"):
            if getattr(self.checkpoint, key) is not None:
                raise ValueError(f"checkpoint: '{key}' can't be combined with evaluator.parallel yet; leave one out")
        if not parallel.min_parameters:
            self.__dict__["merge"] = self.merge.derived(enabled=False)
        return self

    def is_wide(self, parameters: int) -> bool:
        """Whether a trial with so many parameters is trained on several devices at once, in a job of its own."""
        parallel = self.evaluator.parallel
        return parallel is not None and parameters >= parallel.min_parameters

    @field_validator("work_dir", "base_dir")
    @classmethod
    def _absolute(cls, path: Path) -> Path:
        try:
            return absolute(path.expanduser())
        except RuntimeError:
            raise ValueError("there is no home of that user here; write the path out") from None

    @field_validator("store")
    @classmethod
    def _absolute_file(cls, store: Any) -> Any:
        """Name the file of a SQLite store from the root on: the present folder may change later."""
        found = _SQLITE_FILE.fullmatch(store.get_secret_value()) if isinstance(store, SecretUrl) else None
        if found is None or found["file"] == ":memory:" or found["file"].startswith("file:"):
            return store
        folder = str(folder_outside())
        if "?" in folder:  # where the query of a URL would begin
            return store
        return SecretUrl(f"{found['driver']}{folder}/{found['file']}{found['query']}")

    @field_validator("objectives")
    @classmethod
    def _metrics_once(cls, objectives: list[Objective]) -> list[Objective]:
        names = [objective.metric for objective in objectives]
        if len(set(names)) < len(names):
            raise ValueError("each metric can be an objective once")
        return objectives

    @model_validator(mode="after")
    def _like_devices(self) -> "SearchConfig":
        """Refuse services on which a merged job would have unlike numbers of devices, unless they follow from one."""
        if not isinstance(self.evaluator, ProgramConfig) and self.evaluator.parallel is None:
            refuse_unlike(self.training_service)
        return self

    @property
    def devices_of_job(self) -> int:
        """Over how many devices a job spreads its merged trials; 1 for programs, which use them as they like."""
        if isinstance(self.evaluator, ProgramConfig):
            return 1
        return max(map(devices_of_a_job, sections_of(self.training_service)))  # unlike only with evaluator.parallel

    @model_validator(mode="after")
    def _room_for_a_date(self) -> "SearchConfig":
        dated = self.recurring is not None and self.recurring.study != "continue"
        if dated and len(self.name) > NAME_LENGTH - DATED_LENGTH:
            raise ValueError(f"'name' gets a date, so it may have {NAME_LENGTH - DATED_LENGTH} characters at most")
        return self

    def without_derived(self) -> "SearchConfig":
        """Return a copy with defaults for keys that only follow from others, for where those others may be changed.

        Validated again as it is, it is equal to this one.
        """
        evaluator, merge, parallel = self.evaluator, self.merge, self.evaluator.parallel
        if isinstance(self.strategy, HyperbandConfig) and isinstance(evaluator.epochs, int):
            rungs = Options[int](pick=self.strategy.rungs(evaluator.epochs))
            if evaluator.stop_after == rungs:
                evaluator = evaluator.replaced(stop_after=None)
        service = self.training_service if parallel is None else without_devices(self.training_service)
        if parallel is not None and not parallel.min_parameters:
            merge = merge.replaced(enabled=MergeConfig().enabled)
        return self.replaced(evaluator=evaluator, training_service=service, merge=merge)

    @property
    def study_dir(self) -> Path:
        """The folder of this study's jobs and checkpoints."""
        return self.work_dir / self.name


def parse_config(values: dict[str, Any], source: str = "config") -> SearchConfig:
    """Return the validated config.

    Raises:
        ConfigError: names the wrong keys and, for an unknown one, the nearest known.
    """
    try:
        return SearchConfig.model_validate(values)
    except ValidationError as error:
        raise ConfigError(f"{source}: {explain(error, SearchConfig)}") from None


def load_config(path: Path | str) -> SearchConfig:
    """Read a YAML file; `base_dir` becomes its folder unless the file sets it. Raises ConfigError."""
    return parse_config(read_values(Path(path)), str(path))


def read_values(path: Path) -> dict[str, Any]:
    """Return the keys of a config in a YAML file, and its folder as `base_dir` unless the file sets it.

    Raises:
        ConfigError: it can't be read, or has no keys.
    """
    values = read_yaml(path)
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: should hold a mapping that starts with 'name:', 'space:' and 'evaluator:'")
    return {"base_dir": absolute(path).resolve().parent, **values}
