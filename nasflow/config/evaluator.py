"""The `evaluator` section of the search config: how a candidate is trained and scored."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, Tag

from nasflow.config.values import (
    OptionalBool,
    OptionalFloat,
    Options,
    SearchedFloat,
    SearchedInt,
    SearchedTags,
    Section,
)

OptimizerName = Literal["sgd", "adam", "adamw", "rmsprop", "adagrad", "nadam", "radam", "adamax"]
"""torch's optimizers, by their names in lower case."""
ScheduleName = Literal["constant", "cosine", "step", "exponential", "linear"]
"""Learning-rate schedules, stepped once an epoch."""
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


class OptimizerConfig(Section):
    """A torch optimizer by name; every number may be searched. Keys left out keep torch's default."""

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


class ScheduleConfig(Section):
    """How the learning rate changes, one step per epoch, after a linear warm-up of `warmup_epochs`."""

    name: Annotated[
        Annotated[ScheduleName, Field(title="Value"), Tag("value")]
        | Annotated[Options[ScheduleName], Field(title="Options"), Tag("pick")],
        SearchedTags,
    ] = Field(default="constant", description="its shape after the warm-up")
    warmup_epochs: SearchedInt = Field(default=0, description="epochs in which the rate rises to its first value")
    step_size: SearchedInt = Field(default=10, description="epochs between two drops (step)")
    gamma: SearchedFloat = Field(default=0.1, description="factor of a drop (step) or of an epoch (exponential)")
    end_factor: SearchedFloat = Field(default=0.0, description="share of the first rate at the end (cosine, linear)")


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
    early_stopping: EarlyStoppingConfig | None = Field(
        default=None, description="stop trials that no longer improve; none: each trains to its end"
    )
    callbacks: list[Target] = Field(
        default=[], description="Lightning callbacks of each trial, such as an average of weights"
    )


class SupervisedConfig(TrainingConfig):
    """What `classification` and `regression` share."""

    optimizer: OptimizerConfig = Field(default=OptimizerConfig(), description="what moves the weights")
    schedule: ScheduleConfig = Field(default=ScheduleConfig(), description="how the learning rate moves")


class ClassificationConfig(SupervisedConfig):
    """Logits `[B, C]` against class numbers `[B]`."""

    kind: Literal["classification"] = Field(default="classification", description="one of several classes a sample")
    loss: Literal["cross_entropy"] = Field(default="cross_entropy", description="what training minimizes")
    label_smoothing: SearchedFloat = Field(default=0.0, description="share of probability spread over all classes")
    metrics: list[Literal["accuracy", "f1", "precision", "recall", "auroc"]] = Field(
        default=["accuracy"], description="logged as val_<name> after every epoch, beside val_loss"
    )


class RegressionConfig(SupervisedConfig):
    """Predictions `[B]` or `[B, T]` against targets of the same shape."""

    kind: Literal["regression"] = Field(default="regression", description="one or several numbers a sample")
    loss: Annotated[
        Annotated[RegressionLoss, Field(title="Value"), Tag("value")]
        | Annotated[Options[RegressionLoss], Field(title="Options"), Tag("pick")],
        SearchedTags,
    ] = Field(default="mse", description="what training minimizes")
    metrics: list[Literal["mse", "rmse", "mae", "r2"]] = Field(
        default=["rmse", "r2"], description="logged as val_<name> after every epoch, beside val_loss"
    )


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
