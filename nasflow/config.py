"""The search config: one YAML file, or the same as a Python object, says everything about a search."""

from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

import yaml
from pydantic import (
    Field,
    PositiveFloat,
    PositiveInt,
    Tag,
    ValidationError,
    field_validator,
)

from nasflow.config_errors import explain
from nasflow.config_services import LocalServiceConfig, ServiceConfig
from nasflow.config_values import Options, SearchedBool, SearchedFloat, SearchedInt, SearchedTags, Section
from nasflow.errors import ConfigError

OptimizerName = Literal["sgd", "adam", "adamw", "rmsprop", "adagrad", "nadam", "radam", "adamax"]
ScheduleName = Literal["constant", "cosine", "step", "exponential", "linear"]
RegressionLoss = Literal["mse", "mae", "huber"]


class Target(Section):
    """A user's object by import path, called with `params`."""

    target: str = Field(description="package.module:Name, or file.py:Name relative to the config")
    params: dict[str, Any] = Field(default={}, description="keyword arguments")


# --- evaluator ---------------------------------------------------------------------------------------------------


class OptimizerConfig(Section):
    """A torch optimizer by name; every number may be searched. Keys left out keep torch's default."""

    name: Annotated[
        Annotated[OptimizerName, Tag("value")] | Annotated[Options[OptimizerName], Tag("pick")], SearchedTags
    ] = "adamw"
    lr: SearchedFloat = 1e-3
    weight_decay: SearchedFloat | None = None
    momentum: SearchedFloat | None = None
    betas: tuple[SearchedFloat, SearchedFloat] | None = None
    eps: SearchedFloat | None = None
    nesterov: SearchedBool | None = None


class ScheduleConfig(Section):
    """How the learning rate moves, one step an epoch, after a linear warm-up of `warmup_epochs`."""

    name: Annotated[
        Annotated[ScheduleName, Tag("value")] | Annotated[Options[ScheduleName], Tag("pick")], SearchedTags
    ] = "constant"
    warmup_epochs: SearchedInt = 0
    step_size: SearchedInt = Field(default=10, description="epochs between two drops (step)")
    gamma: SearchedFloat = Field(default=0.1, description="factor of a drop (step) or of an epoch (exponential)")
    end_factor: SearchedFloat = Field(default=0.0, description="share of the first rate at the end (cosine, linear)")


class EarlyStoppingConfig(Section):
    """Stop a trial after `patience` epochs in which `metric` improved by no more than `min_delta`."""

    metric: str = "val_loss"
    direction: Literal["minimize", "maximize"] = "minimize"
    patience: SearchedInt = 3
    min_delta: SearchedFloat = 0.0


class DataConfig(Target):
    """A LightningDataModule class, or a callable that gives one or a pair (train, validation) of loaders.

    Any param may be searched.
    """


class TrainingConfig(Section):
    """What every evaluator shares."""

    data: DataConfig
    epochs: SearchedInt = 10
    precision: Literal["32-true", "64-true", "bf16-mixed"] = "32-true"
    gradient_clip_val: SearchedFloat | None = None
    gradient_clip_algorithm: Literal["norm", "value"] = "norm"
    early_stopping: EarlyStoppingConfig | None = None


class SupervisedConfig(TrainingConfig):
    """What `classification` and `regression` share."""

    optimizer: OptimizerConfig = OptimizerConfig()
    schedule: ScheduleConfig = ScheduleConfig()


class ClassificationConfig(SupervisedConfig):
    """Logits `[B, C]` against class numbers `[B]`."""

    kind: Literal["classification"] = "classification"
    loss: Literal["cross_entropy"] = "cross_entropy"
    label_smoothing: SearchedFloat = 0.0
    metrics: list[Literal["accuracy", "f1", "precision", "recall", "auroc"]] = Field(default=["accuracy"])


class RegressionConfig(SupervisedConfig):
    """Predictions `[B]` or `[B, T]` against targets of the same shape."""

    kind: Literal["regression"] = "regression"
    loss: Annotated[
        Annotated[RegressionLoss, Tag("value")] | Annotated[Options[RegressionLoss], Tag("pick")], SearchedTags
    ] = "mse"
    metrics: list[Literal["mse", "rmse", "mae", "r2"]] = Field(default=["rmse", "r2"])


class LightningConfig(TrainingConfig):
    """A user's LightningModule class, which takes `model` and uses `self.model(x)`; its params may be searched."""

    kind: Literal["lightning"] = "lightning"
    module: Target


class CustomEvaluatorConfig(TrainingConfig):
    """A user's `nasflow.evaluator.base.Evaluator` subclass."""

    kind: Literal["custom"] = "custom"
    target: str
    params: dict[str, Any] = Field(default={})


EvaluatorConfig = Annotated[
    ClassificationConfig | RegressionConfig | LightningConfig | CustomEvaluatorConfig, Field(discriminator="kind")
]

# --- strategy ----------------------------------------------------------------------------------------------------


class RandomConfig(Section):
    """Sample evenly at every choice; architectures already seen are avoided while new ones can be found."""

    kind: Literal["random"] = "random"


class GridConfig(Section):
    """Every architecture in turn; a searched float range is cut into `float_steps` values."""

    kind: Literal["grid"] = "grid"
    float_steps: PositiveInt = 5


class EvolutionConfig(Section):
    """Regularized (aging) evolution, Real et al. 2019."""

    kind: Literal["evolution"] = "evolution"
    population: PositiveInt = 32
    tournament: PositiveInt = Field(default=8, description="trials drawn from the population; the best is the parent")
    crossover: float = Field(default=0.0, ge=0, le=1, description="share of children with two parents")


class OptunaConfig(Section):
    """An Optuna sampler by name; `params` go to its constructor."""

    kind: Literal["tpe", "nsga2", "gp", "cmaes", "qmc"]
    params: dict[str, Any] = Field(default={})


class CustomStrategyConfig(Section):
    """A user's `nasflow.strategy.base.Strategy` subclass."""

    kind: Literal["custom"] = "custom"
    target: str
    params: dict[str, Any] = Field(default={})


StrategyConfig = Annotated[
    RandomConfig | GridConfig | EvolutionConfig | OptunaConfig | CustomStrategyConfig, Field(discriminator="kind")
]

# --- pruner ------------------------------------------------------------------------------------------------------


class MedianPrunerConfig(Section):
    """Stop a member whose best value so far is worse than the median of the others' values in the same epoch."""

    kind: Literal["median"] = "median"
    warmup_epochs: int = Field(default=1, ge=0, description="epochs before anyone is judged")
    every_epochs: PositiveInt = 1
    min_others: PositiveInt = Field(default=4, description="others that must have come as far")


class HalvingPrunerConfig(Section):
    """Asynchronous successive halving: the best 1 / `reduction_factor` go on at `min_epochs`, and at each multiple."""

    kind: Literal["halving"] = "halving"
    reduction_factor: int = Field(default=3, ge=2)
    min_epochs: PositiveInt = 1


class CustomPrunerConfig(Target):
    """A user's `nasflow.training.pruning.Pruner` subclass."""

    kind: Literal["custom"] = "custom"


PrunerConfig = Annotated[MedianPrunerConfig | HalvingPrunerConfig | CustomPrunerConfig, Field(discriminator="kind")]

# --- the rest ----------------------------------------------------------------------------------------------------


class Objective(Section):
    """A final metric and which way is better."""

    metric: str = "val_accuracy"
    direction: Literal["minimize", "maximize"] = "maximize"


class Budget(Section):
    """The search ends at the first limit it meets. No round starts after `hours` of rounds."""

    rounds: PositiveInt = 3
    trials_per_round: PositiveInt = 16
    trials: PositiveInt | None = Field(
        default=None, description="of all rounds together, repeated architectures among them"
    )
    hours: PositiveFloat | None = None


class MergeConfig(Section):
    """How trials share jobs. `enabled: false` trains each trial in a job of its own."""

    enabled: bool = True
    max_members: PositiveInt = 16
    jobs_per_slot: PositiveInt = Field(
        default=1,
        description="jobs that a round makes for each slot; of more, smaller ones fast hosts take more",
    )
    fuse: Literal["measured", "always", "never"] = Field(
        default="measured",
        description="run equal operations of several members as one kernel: where that was measured to be faster",
    )
    passes: list[str] = Field(default=[], description="import paths of passes over the logical plan (docs/merging.md)")


class RetryConfig(Section):
    """How often failed work is tried again, and after which delays in seconds (the last one repeats)."""

    batch: int = Field(default=3, ge=0, description="restarts of a batch that was lost to its infrastructure")
    alone: int = Field(default=2, ge=0, description="retries of a failed trial on its own")
    delay_seconds: list[Annotated[float, Field(ge=0)]] = Field(default=[1.0, 5.0, 15.0], min_length=1, max_length=50)


class CheckpointConfig(Section):
    """Every trial is checkpointed after init, every `every_epochs` epochs, and at the end; the `keep` newest stay."""

    every_epochs: PositiveInt = 1
    every_minutes: PositiveFloat | None = Field(
        default=None, description="also after an epoch that ends so long after the last checkpoint"
    )
    keep: PositiveInt = 2
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
                "it has a password in it, which would be on record; let the storage's own settings hold it"
            )
        return url


class SearchConfig(Section):
    """Everything about one search. Running the same name again resumes its study."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$", description="the study")
    space: Target
    evaluator: EvaluatorConfig
    strategy: StrategyConfig = RandomConfig()
    objectives: list[Objective] = Field(default=[Objective()], min_length=1)
    budget: Budget = Budget()
    merge: MergeConfig = MergeConfig()
    pruner: PrunerConfig | None = None
    retry: RetryConfig = RetryConfig()
    training_service: ServiceConfig = LocalServiceConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    store: str = Field(default="sqlite:///nasflow.db", description="SQLAlchemy URL of the study's database")
    work_dir: Path = Field(
        default=Path("nasflow-runs"), description="folder for jobs and checkpoints, one sub-folder a study"
    )
    base_dir: Path = Field(
        default=Path(),
        description="where file.py targets are looked for; set to the config's folder when read from a file",
    )
    seed: int = 0

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

    @property
    def study_dir(self) -> Path:
        """Where this study keeps its jobs and checkpoints."""
        return self.work_dir / self.name


def parse_config(values: dict[str, Any], source: str = "config") -> SearchConfig:
    """The validated config.

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
