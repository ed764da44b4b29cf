"""The `evaluator` section of the search config: how a candidate is trained and scored."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Discriminator, Field, PositiveInt, Tag, model_validator

from nasflow.config.values import (
    OptionalBool,
    OptionalFloat,
    OptionalInt,
    Options,
    SearchedFloat,
    SearchedInt,
    SearchedTags,
    Section,
    searched_tag,
)

OptimizerName = Literal["sgd", "adam", "adamw", "rmsprop", "adagrad", "nadam", "radam", "adamax"]
"""torch's optimizers, by their names in lower case."""
ScheduleName = Literal["constant", "cosine", "step", "exponential", "linear", "polynomial", "one_cycle", "plateau"]
"""Learning-rate schedules."""
RegressionLoss = Literal["mse", "mae", "huber"]
"""Losses of `kind: regression`."""
Direction = Literal["minimize", "maximize"]
"""Which way a metric is better."""


def to_loss(value: float, direction: Direction) -> float:
    """Return `value` with the sign that makes lower better: negated if it is to be maximized."""
    return -value if direction == "maximize" else value


class Target(Section):
    """A user's object by import path, called with `params`."""

    target: str = Field(description="package.module:Name, or file.py:Name relative to the config")
    params: dict[str, Any] = Field(default={}, description="keyword arguments")


def _loss_tag(value: Any) -> str:
    """Return the kind that a loss is meant as: by name, searched, or by import path."""
    is_target = isinstance(value, Target) or (isinstance(value, dict) and "target" in value)
    return "Target" if is_target else searched_tag(value)


def _plain_loss_tag(value: Any) -> str:
    return "Target" if _loss_tag(value) == "Target" else "value"


class MetricConfig(Section):
    """A torchmetrics metric by import path, or a shortcut for one."""

    name: str = Field(pattern=r"^[a-z][a-z0-9_]*$", description="it is logged as val_<name>")
    target: str | None = Field(
        default=None, description="a torchmetrics class, as package.module:Name or file.py:Name relative to the config"
    )
    params: dict[str, Any] = Field(default={}, description="keyword arguments; num_classes is known")
    top_k: PositiveInt | None = Field(
        default=None,
        title="Top k",
        description="instead of a class: the share of samples whose class is among the k most likely",
    )

    @model_validator(mode="after")
    def _one_kind(self) -> "MetricConfig":
        if (self.target is None) == (self.top_k is None):
            raise ValueError("give one of target and top_k")
        if self.name == "loss":
            raise ValueError("'val_loss' is logged anyway; give the metric another name")
        if any(searched_tag(value) != "value" for value in self.params.values()):
            raise ValueError("the params of a metric can't be searched, because trials are compared by it")
        return self


def metric_name(metric: str | MetricConfig) -> str:
    """Return the name under which a metric is logged, without val_."""
    return metric if isinstance(metric, str) else metric.name


def _metric_tag(value: Any) -> str:
    return "value" if isinstance(value, str) else "MetricConfig"


def _named_once(metrics: list[Any]) -> list[Any]:
    names = [metric_name(metric) for metric in metrics]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ValueError(f"two metrics are named '{twice[0]}'")
    return metrics


_OwnMetric = Annotated[MetricConfig, Field(title="By import path"), Tag("MetricConfig")]
_OwnLoss = Annotated[Target, Field(title="By import path"), Tag("Target")]
ClassificationMetric = Annotated[
    Annotated[Literal["accuracy", "f1", "precision", "recall", "auroc"], Field(title="By name"), Tag("value")]
    | _OwnMetric,
    Discriminator(_metric_tag),
]
"""Metrics of `kind: classification`, by name or by import path."""
RegressionMetric = Annotated[
    Annotated[Literal["mse", "rmse", "mae", "r2"], Field(title="By name"), Tag("value")] | _OwnMetric,
    Discriminator(_metric_tag),
]
"""Metrics of `kind: regression`, by name or by import path."""


class OptimizerConfig(Section):
    """A torch optimizer by name, or any by import path; every number may be searched.

    Keys left out keep torch's default.
    """

    name: Annotated[
        Annotated[OptimizerName, Field(title="Value"), Tag("value")]
        | Annotated[Options[OptimizerName], Field(title="Options"), Tag("pick")],
        SearchedTags,
    ] = Field(default="adamw", description="torch's optimizer")
    lr: SearchedFloat = Field(default=1e-3, title="Learning rate", description="the first one, before any schedule")
    weight_decay: OptionalFloat = Field(default=None, description="decoupled in adamw, else an L2 penalty")
    momentum: OptionalFloat = Field(default=None, description="of sgd and rmsprop")
    betas: tuple[SearchedFloat, SearchedFloat] | None = Field(
        default=None, description="decay of the running mean and of the running square, in the Adam family"
    )
    eps: OptionalFloat = Field(default=None, title="Epsilon", description="added to denominators")
    nesterov: OptionalBool = Field(default=None, description="Nesterov momentum, in sgd")
    no_decay: list[Literal["norm", "bias"]] = Field(
        default=[], description="which parameters have no weight decay: those of norms, and biases"
    )
    target: str | None = Field(
        default=None,
        description="another optimizer class, as package.module:Name or file.py:Name; none: by name",
    )
    params: dict[str, Any] = Field(default={}, description="keyword arguments of the class beside the keys above")

    @model_validator(mode="after")
    def _name_or_target(self) -> "OptimizerConfig":
        if self.target is not None and self.name != "adamw":  # the default, which a record of a config names too
            raise ValueError("give 'name' or 'target', not both")
        return self


class ScheduleConfig(Section):
    """How the learning rate changes after a linear warm-up, once an epoch or after every optimizer step."""

    name: Annotated[
        Annotated[ScheduleName, Field(title="Value"), Tag("value")]
        | Annotated[Options[ScheduleName], Field(title="Options"), Tag("pick")],
        SearchedTags,
    ] = Field(default="constant", description="its shape after the warm-up")
    interval: Literal["epoch", "step"] = Field(default="epoch", description="when the rate changes")
    warmup_epochs: SearchedInt = Field(default=0, description="epochs in which the rate rises to its first value")
    warmup_steps: SearchedInt = Field(default=0, description="steps of warm-up, besides its epochs (interval: step)")
    step_size: SearchedInt = Field(default=10, description="epochs, or steps by interval, between two drops (step)")
    gamma: SearchedFloat = Field(
        default=0.1, description="factor of a drop (step, plateau), or of an epoch or step (exponential)"
    )
    end_factor: SearchedFloat = Field(
        default=0.0, description="share of the first rate at the end (cosine, linear, polynomial, one_cycle, plateau)"
    )
    restart_epochs: OptionalInt = Field(default=None, description="epochs before the first restart (cosine)")
    restart_steps: OptionalInt = Field(default=None, description="the same in steps (cosine, interval: step)")
    restart_mult: SearchedInt = Field(default=1, description="how many times as long each next cycle is (cosine)")
    power: SearchedFloat = Field(default=1.0, description="of polynomial")
    rise: SearchedFloat = Field(default=0.3, description="share of the training in which the rate rises (one_cycle)")
    start_factor: SearchedFloat = Field(default=0.04, description="share of the rate at the begin (one_cycle)")
    metric: str = Field(default="val_loss", description="one that is logged in every epoch (plateau)")
    direction: Direction = Field(default="minimize", description="which way the metric is better (plateau)")
    patience: SearchedInt = Field(default=10, description="epochs without improvement that cause no drop (plateau)")

    @model_validator(mode="after")
    def _steps_by_step(self) -> "ScheduleConfig":
        names = self.name.pick if isinstance(self.name, Options) else [self.name]
        if self.interval == "step" and "plateau" in names:
            raise ValueError("'plateau' looks at a metric once an epoch; leave out 'interval: step'")
        if self.interval == "epoch" and (self.warmup_steps != 0 or self.restart_steps is not None):
            key = "restart_steps" if self.warmup_steps == 0 else "warmup_steps"
            raise ValueError(f"'{key}' needs 'interval: step'; else give {key.replace('steps', 'epochs')}")
        if self.restart_epochs is not None and self.restart_steps is not None:
            raise ValueError("give restart_epochs or restart_steps, not both")
        return self


class EarlyStoppingConfig(Section):
    """Stop a trial after `patience` epochs in which `metric` improved by no more than `min_delta`."""

    metric: str = Field(default="val_loss", description="one that is logged in every epoch")
    direction: Direction = Field(default="minimize", description="which way is better")
    patience: SearchedInt = Field(default=3, description="epochs without improvement")
    min_delta: SearchedFloat = Field(default=0.0, description="what counts as no improvement")


class DataConfig(Target):
    """A LightningDataModule class, or a callable that gives one or a pair (train, validation) of loaders.

    Any param may be searched.
    """


class LimitBatchesConfig(Section):
    """How many batches an epoch has, at most."""

    train: PositiveInt | None = Field(default=None, description="training batches; none: all")
    validation: PositiveInt | None = Field(default=None, description="validation batches; none: all")


def _limit_tag(value: Any) -> str:
    return "LimitBatchesConfig" if isinstance(value, dict | LimitBatchesConfig) else "value"


class TrainingConfig(Section):
    """What every evaluator shares."""

    data: DataConfig = Field(description="what is trained and validated on")
    test_data: DataConfig | None = Field(
        default=None,
        description="what the best trial is scored on once, at the end: a LightningDataModule class, or a callable "
        "that gives a loader",
    )
    epochs: SearchedInt = Field(default=10, description="of every trial that is not stopped early")
    stop_after: SearchedInt | None = Field(
        default=None,
        description="epochs after which a trial ends before all of `epochs`; a later one that differs in nothing else "
        "goes on from its checkpoint",
    )
    precision: Literal["32-true", "64-true", "bf16-mixed"] = Field(default="32-true", description="as Lightning's")
    gradient_clip_val: OptionalFloat = Field(
        default=None,
        title="Gradient clipping",
        description="the largest norm or value of a gradient; none: no clipping",
    )
    gradient_clip_algorithm: Literal["norm", "value"] = Field(
        default="norm", title="Gradient clipping by", description="what is clipped"
    )
    limit_batches: (
        Annotated[
            Annotated[PositiveInt, Field(title="Of both"), Tag("value")]
            | Annotated[LimitBatchesConfig, Tag("LimitBatchesConfig")],
            Discriminator(_limit_tag),
        ]
        | None
    ) = Field(default=None, description="a quick look: the first batches of each epoch only; none: all of them")
    early_stopping: EarlyStoppingConfig | None = Field(
        default=None, description="stop trials that no longer improve; none: each trains to its end"
    )
    callbacks: list[Target] = Field(
        default=[], description="Lightning callbacks of each trial, such as an average of weights"
    )

    @property
    def batch_limits(self) -> LimitBatchesConfig:
        """The most batches of an epoch."""
        limit = self.limit_batches
        return limit if isinstance(limit, LimitBatchesConfig) else LimitBatchesConfig(train=limit, validation=limit)


class SupervisedConfig(TrainingConfig):
    """What `classification` and `regression` share."""

    optimizer: OptimizerConfig = Field(default=OptimizerConfig(), description="what moves the weights")
    schedule: ScheduleConfig = Field(default=ScheduleConfig(), description="how the learning rate moves")


class ClassificationConfig(SupervisedConfig):
    """Logits `[B, C]` against class numbers `[B]`."""

    kind: Literal["classification"] = Field(default="classification", description="one of several classes a sample")
    loss: Annotated[
        Annotated[Literal["cross_entropy"], Field(title="By name"), Tag("value")] | _OwnLoss,
        Discriminator(_plain_loss_tag),
    ] = Field(default="cross_entropy", description="what training minimizes")
    label_smoothing: SearchedFloat = Field(default=0.0, description="share of probability spread over all classes")
    metrics: Annotated[list[ClassificationMetric], AfterValidator(_named_once)] = Field(
        default=["accuracy"], description="logged as val_<name> after every epoch, beside val_loss"
    )

    @model_validator(mode="after")
    def _smoothing_is_of_cross_entropy(self) -> "ClassificationConfig":
        if isinstance(self.loss, Target) and self.label_smoothing != 0:
            raise ValueError("'label_smoothing' is of cross_entropy; a loss by import path takes its own in params")
        return self


class RegressionConfig(SupervisedConfig):
    """Predictions `[B]` or `[B, T]` against targets of the same shape."""

    kind: Literal["regression"] = Field(default="regression", description="one or several numbers a sample")
    loss: Annotated[
        Annotated[RegressionLoss, Field(title="Value"), Tag("value")]
        | Annotated[Options[RegressionLoss], Field(title="Options"), Tag("pick")]
        | _OwnLoss,
        Discriminator(_loss_tag),
    ] = Field(default="mse", description="what training minimizes")
    metrics: Annotated[list[RegressionMetric], AfterValidator(_named_once)] = Field(
        default=["rmse", "r2"], description="logged as val_<name> after every epoch, beside val_loss"
    )

    @model_validator(mode="after")
    def _no_top_k(self) -> "RegressionConfig":
        if any(isinstance(metric, MetricConfig) and metric.top_k is not None for metric in self.metrics):
            raise ValueError("'top_k' is of classification")
        return self


class LightningConfig(TrainingConfig):
    """A user's LightningModule class, which takes `model` and uses `self.model(x)`; its params may be searched."""

    kind: Literal["lightning"] = Field(default="lightning", description="a LightningModule of yours")
    module: Target = Field(description="the class; it is built with `model` and the params")


class CustomEvaluatorConfig(TrainingConfig):
    """A user's `nasflow.evaluator.base.Evaluator` subclass."""

    kind: Literal["custom"] = Field(default="custom", description="an Evaluator of yours")
    target: str = Field(description="package.module:Name, or file.py:Name relative to the config")
    params: dict[str, Any] = Field(default={}, description="keyword arguments of the class")


class ProgramConfig(Section):
    """What `function` and `command` share: each trial trains in a process of its own, by code that is never merged."""

    data: ClassVar[None] = None
    """The program has its own."""
    test_data: ClassVar[None] = None
    stop_after: ClassVar[None] = None
    """A program goes on by itself."""

    params: dict[str, Any] = Field(default={}, description="what the program is given; any value may be searched")
    epochs: SearchedInt = Field(default=10, description="reports of every trial that is not stopped early")
    early_stopping: EarlyStoppingConfig | None = Field(
        default=None, description="stop trials that no longer improve; none: each trains to its end"
    )


class FunctionConfig(ProgramConfig):
    """A user's function that trains a model and reports every epoch.

    It is called with those of `model`, `report`, `checkpoint` and `seed` that its signature names, and with the params.
    """

    kind: Literal["function"] = Field(default="function", description="a function of yours that trains")
    target: str = Field(description="package.module:name, or file.py:name relative to the config")


class CommandConfig(ProgramConfig):
    """Any program; it finds architecture and params in a file, and writes its metrics into another."""

    kind: Literal["command"] = Field(default="command", description="any program that trains")
    command: list[str] = Field(min_length=1, description="program and arguments, started in the config's folder")


# if all keys of one kind are keys of another, a form takes the first
EvaluatorConfig = Annotated[
    RegressionConfig | ClassificationConfig | LightningConfig | FunctionConfig | CommandConfig | CustomEvaluatorConfig,
    Field(discriminator="kind"),
]
"""The section of any evaluator, chosen by `kind`."""
