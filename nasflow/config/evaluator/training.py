"""What every evaluator shares whose training loop is nasflow's."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, PositiveInt, Tag, field_validator, model_validator

from nasflow.config.evaluator.metrics import Directed, Direction
from nasflow.config.evaluator.parallel import ParallelConfig
from nasflow.config.evaluator.target import Target
from nasflow.config.values import IntRange, OptionalFloat, Options, SearchedFloat, SearchedInt, Section


class EarlyStoppingConfig(Directed):
    """Stop a trial after `patience` epochs in which `metric` improved by no more than `min_delta`."""

    metric: str = Field(default="val_loss", description="one that is logged in every epoch")
    direction: Direction = Field(default="minimize", description="which way is better; left out: by the metric's name")
    patience: SearchedInt = Field(default=3, description="epochs without improvement")
    min_delta: SearchedFloat = Field(default=0.0, description="what counts as no improvement")


class DataConfig(Target):
    """A LightningDataModule class, or a callable that gives one or a pair (train, validation) of loaders.

    Any param may be searched.
    """

    fraction: SearchedFloat = Field(
        default=1.0,
        description="share of the training samples to train on; the same ones for one seed, more for a larger share",
    )
    keep_workers: bool = Field(
        default=False,
        description="a DataLoader's worker processes stay from epoch to epoch; a data set's caches stay with them",
    )


class LimitBatchesConfig(Section):
    """How many batches an epoch has, at most."""

    train: PositiveInt | None = Field(default=None, description="training batches; none: all")
    validation: PositiveInt | None = Field(default=None, description="validation batches; none: all")


class AverageConfig(Section):
    """An exponential moving average of the weights, by which a trial is validated and exported."""

    decay: SearchedFloat = Field(default=0.999, description="share of the average that each optimizer step keeps")

    @model_validator(mode="after")
    def _is_a_share(self) -> "AverageConfig":
        if isinstance(self.decay, float) and not 0 <= self.decay < 1:
            raise ValueError("'decay' should be a number from 0 to below 1")
        return self


def _limit_tag(value: Any) -> str:
    return "LimitBatchesConfig" if isinstance(value, dict | LimitBatchesConfig) else "value"


def _values(number: Any) -> Sequence[int]:
    """Return the values that a searched number may have, none without a number; of a range, the first two.

    What divides those divides all of them.
    """
    match number:
        case Options():
            return number.pick
        case IntRange():
            return range(number.int[0], number.int[1] + 1, number.step)[:2]
        case int():
            return [number]
        case _:
            return []


class TrainingConfig(Section):
    """What every evaluator shares."""

    data: DataConfig = Field(description="what is trained and validated on")
    test_data: Target | None = Field(
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
    repeats: PositiveInt = Field(
        default=1,
        description="train each architecture so many times, each time with another seed; its metrics are the means",
    )
    folds: int | None = Field(
        default=None,
        ge=2,
        description="cross-validate each architecture: train it on so many splits of the training data; its metrics "
        "are the means; none: validate on the data's own validation part",
    )
    precision: Literal["32-true", "64-true", "16-mixed", "bf16-mixed"] = Field(
        default="32-true", description="as Lightning's"
    )
    matmul_precision: Literal["highest", "high", "medium"] = Field(
        default="highest",
        description="of float32 in products and convolutions: whole, as TF32 on GPUs that have it, or as bfloat16",
    )
    deterministic: bool = Field(
        default=False, description="on a GPU, use slower algorithms that give the same bits each time"
    )
    gradient_clip_val: OptionalFloat = Field(
        default=None,
        title="Gradient clipping",
        description="the largest norm or value of a gradient; none: no clipping",
    )
    gradient_clip_algorithm: Literal["norm", "value"] = Field(
        default="norm", title="Gradient clipping by", description="what is clipped"
    )
    accumulate_grad_batches: SearchedInt = Field(
        default=1, description="batches whose gradients make up an optimizer step, as Lightning's"
    )
    ema: AverageConfig | None = Field(
        default=None, title="EMA", description="validate and export an average of the weights; none: the last ones"
    )
    limit_batches: (
        Annotated[
            Annotated[PositiveInt, Field(title="Of both"), Tag("value")]
            | Annotated[LimitBatchesConfig, Tag("LimitBatchesConfig")],
            Discriminator(_limit_tag),
        ]
        | None
    ) = Field(default=None, description="a quick look: the first batches of each epoch only; none: all of them")
    batches_per_epoch: PositiveInt | None = Field(
        default=None,
        description="an epoch ends, is validated and saved, after so many training batches, and the next one goes on "
        "with those that follow; none: an epoch is a pass over the data",
    )
    validate_every: PositiveInt = Field(
        default=1, description="validate after so many epochs; it must divide epochs and stop_after"
    )
    early_stopping: EarlyStoppingConfig | None = Field(
        default=None, description="stop trials that no longer improve; none: each trains to its end"
    )
    callbacks: list[Target] = Field(
        default=[], description="Lightning callbacks of each trial, such as an average of weights"
    )
    parallel: ParallelConfig | None = Field(
        default=None, description="train each trial on several devices at once, unmerged; none: on one"
    )

    @property
    def most_epochs(self) -> int:
        """How many epochs the longest trial trains, unless `stop_after` ends it."""
        match self.epochs:
            case Options(pick=numbers):
                return max(numbers)
            case IntRange(int=(low, high), step=step):
                return range(low, high + 1, step)[-1]
            case number:
                return number

    @field_validator("precision", mode="before")
    @classmethod
    def _without_half(cls, precision: Any) -> Any:
        if str(precision) in ("16", "16-true"):
            raise ValueError(
                "weights in half precision can't be trained; use 16-mixed, which scales the losses, or bf16-mixed, "
                "whose range is that of 32 bits"
            )
        return precision

    @model_validator(mode="after")
    def _accumulates_batches(self) -> "TrainingConfig":
        if isinstance(self.accumulate_grad_batches, int) and self.accumulate_grad_batches < 1:
            raise ValueError("'accumulate_grad_batches' should be at least 1")
        return self

    @model_validator(mode="after")
    def _validates_at_the_end(self) -> "TrainingConfig":
        for key in ("epochs", "stop_after"):
            if wrong := [number for number in _values(getattr(self, key)) if number % self.validate_every]:
                raise ValueError(
                    f"'validate_every' is {self.validate_every}, which does not divide '{key}', {wrong[0]}: the last "
                    "epoch would not be validated"
                )
        return self

    @model_validator(mode="after")
    def _has_folds_or_repeats(self) -> "TrainingConfig":
        if self.folds is not None and self.repeats > 1:
            raise ValueError(
                "'folds' and 'repeats' can't be combined; each fold has another seed already: leave one out"
            )
        return self

    @model_validator(mode="after")
    def _fits_several_devices(self) -> "TrainingConfig":
        if self.parallel is None:
            return self
        refused = {
            "folds": self.folds is not None,
            "repeats": self.repeats > 1,
            "stop_after": self.stop_after is not None,
            "ema": self.ema is not None,
            "precision": self.precision == "16-mixed",
            "class_weights": getattr(self, "class_weights", None) is not None,
        }
        if keys := [key for key, is_given in refused.items() if is_given]:
            raise ValueError(
                f"'parallel' can't be combined with '{keys[0]}'"
                f"{' 16-mixed' if keys[0] == 'precision' else ''} yet; leave one of them out"
            )
        return self

    @property
    def members_per_trial(self) -> int:
        """How many members train each architecture."""
        return self.folds or self.repeats

    @property
    def member_name(self) -> str:
        """What a message calls one of several members of a trial."""
        return "fold" if self.folds else "repeat"

    @property
    def batch_limits(self) -> LimitBatchesConfig:
        """The most batches of an epoch."""
        limit = self.limit_batches
        return limit if isinstance(limit, LimitBatchesConfig) else LimitBatchesConfig(train=limit, validation=limit)
