"""The ready-made evaluators: classification and regression."""

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import torchmetrics
from pytorch_lightning import LightningModule
from torch import nn
from torch.nn import functional as F

from nasflow.config.evaluator.metrics import MetricConfig
from nasflow.config.evaluator.supervised import ClassificationConfig, RegressionConfig, SupervisedConfig
from nasflow.config.evaluator.target import Target
from nasflow.errors import TrialError
from nasflow.evaluator.base import Evaluator
from nasflow.evaluator.ready_made.mixing import mix
from nasflow.evaluator.ready_made.named_metrics import AUROC, R2, Accuracy
from nasflow.evaluator.ready_made.optimizers import make_optimizer, make_schedule, parameter_groups
from nasflow.evaluator.ready_made.own_parts import is_known, make_loss, make_metric, metric_class
from nasflow.evaluator.ready_made.pairs import (
    IGNORED,
    class_numbers,
    explained,
    no_numbers,
    one_tensor,
    pair_of,
    refuse_no_classes,
    refuse_no_logits,
)

REGRESSION_LOSSES: dict[str, Callable[..., torch.Tensor]] = {
    "mse": F.mse_loss,
    "mae": F.l1_loss,
    "huber": F.huber_loss,
}


class SupervisedModule(LightningModule):
    """Base class of the ready-made modules; logs `train_loss`, `val_loss`, and `val_<metric>` for each metric.

    Args:
        base_dir: the folder of the user's code that the config names.

    Attributes:
        own_loss: the loss by import path; None without one.
        is_checked: whether training outputs have no more to be looked at by `check_output`.
    """

    config: ClassificationConfig | RegressionConfig
    watch: Callable[[torch.Tensor, torch.Tensor], None] | None = None
    """Called with the outputs and targets of each validation batch."""

    def __init__(self, model: nn.Module, config: ClassificationConfig | RegressionConfig, base_dir: Path | None = None):
        super().__init__()
        self.model = model
        self.config = config
        self._base_dir = base_dir
        self.own_loss = make_loss(config.loss, base_dir) if isinstance(config.loss, Target) else None
        self.val_metrics = nn.ModuleDict()  # filled at the first validation batch, which shows the shapes
        self.is_checked = self.own_loss is not None
        self.register_load_state_dict_post_hook(_without_metrics)  # type: ignore[no-untyped-call]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the model's output. Raises TrialError if that is no tensor, unless a loss by import path takes it."""
        out: Any = self.model(x)
        return out if self.training and self.own_loss is not None else one_tensor(out, self.config.kind)

    def compare(self, batch: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the model's output for a batch (inputs, targets), and the targets, in matching shapes."""
        x, target = pair_of(batch, self.config.kind)
        return self(x), target

    def check_output(self, output: torch.Tensor, target: torch.Tensor) -> None:
        """Raise TrialError, until one is right, for a training output of a shape that validation could not score.

        A model may give something else in training than in validation: with a loss by import path anything, and else
        logits for each place.
        """
        if not self.is_checked and self._trainer is not None:
            if self._trainer.enable_validation and output.ndim < 3:
                self.refuse_output(output, target)
            self.is_checked = True

    @abstractmethod
    def refuse_output(self, output: torch.Tensor, target: torch.Tensor) -> None:
        """Raise TrialError for an output, as from `compare`, of a shape that can't be scored against the targets."""

    def refuse_targets(self, target: torch.Tensor) -> None:
        """Raise TrialError for targets that a metric can't be computed with."""
        return

    @abstractmethod
    def loss(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Return the training loss, a scalar."""

    @abstractmethod
    def make_metrics(self, output: torch.Tensor) -> dict[str, torchmetrics.Metric]:
        """Return the configured metrics, for outputs of this shape.

        A new metric also needs its name in `nasflow.config.evaluator.metrics`. `group_metrics` computes it member by
        member unless it has a family there.
        """

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        """Log and return the loss of one batch."""
        output, target = self.compare(batch)
        self.check_output(output, target)
        loss = self.loss(output, target)
        self.log("train_loss", loss, on_step=False, on_epoch=True, batch_size=len(target))
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        """Log the loss of one batch, and update the metrics."""
        output, target = self.compare(batch)
        if not self.val_metrics:
            self.refuse_output(output, target)
        self.log("val_loss", self.loss(output, target), on_epoch=True, batch_size=len(target))
        if not self.val_metrics:
            made = self.make_metrics(output)
            self.refuse_targets(target)
            self.val_metrics.update({name: metric.to(output.device) for name, metric in made.items()})
        if self.watch is not None:
            self.watch(output.detach(), target)
        for name, metric in self.val_metrics.items():
            assert isinstance(metric, torchmetrics.Metric)  # noqa: S101 - for the type checker
            metric.update(output.detach(), class_numbers(target))
            self.log(f"val_{name}", metric, on_epoch=True)

    def configure_optimizers(self) -> Any:
        """Return one optimizer of all trainable parameters, and its schedule."""
        config = self.config.schedule
        groups = parameter_groups(self, self.config.optimizer.no_decay)
        optimizer = make_optimizer(self.config.optimizer, groups, self._base_dir)
        steps = self._steps_of_epoch() if config.interval == "step" else math.inf
        schedule = make_schedule(config, optimizer, int(self.config.epochs), steps)  # type: ignore[arg-type]
        entry = {"scheduler": schedule, "interval": config.interval, "monitor": config.metric}
        return {"optimizer": optimizer, "lr_scheduler": entry}

    def why_solo(self, optimizer: torch.optim.Optimizer) -> str | None:
        """Return why it can't be stepped with others, None if it can.

        Code of the user's own runs in the member's own step, within its random stream.
        """
        if not is_known(type(optimizer)):
            return f"its optimizer {type(optimizer).__name__} is none of torch's"
        if self.own_loss is not None and not is_known(self.own_loss):
            return "its loss is none of torch's"
        own = [metric for metric in self.config.metrics if isinstance(metric, MetricConfig) and metric.target]
        names = [metric.name for metric in own if not is_known(metric_class(metric, self._base_dir)[0])]
        return f"its metric {names[0]} is none of torchmetrics'" if names else None

    def compute_own_loss(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor | None:
        """Return the loss by import path; None if the config names none."""
        if self.own_loss is None:
            return None
        loss: Any = self.own_loss(output, target)
        if not isinstance(loss, torch.Tensor) or loss.ndim:
            what = f"a tensor {tuple(loss.shape)}" if isinstance(loss, torch.Tensor) else f"a {type(loss).__name__}"
            raise TrialError(
                f"evaluator.loss gave {what}; it should give a tensor with one number, a mean over samples"
            )
        return loss

    def make_own_metrics(
        self, makers: Mapping[str, Callable[[], torchmetrics.Metric]], classes: int | None = None
    ) -> dict[str, torchmetrics.Metric]:
        """Return the configured metrics: `makers` has those by name."""
        made = {}
        for metric in self.config.metrics:
            if isinstance(metric, MetricConfig) and metric.top_k is None:
                made[metric.name] = make_metric(metric, self._base_dir, classes)
            elif isinstance(metric, MetricConfig):
                made[metric.name] = _top_k(int(metric.top_k or 0), classes or 0)
            else:
                made[metric] = makers[metric]()
        return made

    def _steps_of_epoch(self) -> float:
        """Return the number of optimizer steps in an epoch; not finite if the loader does not know its length."""
        return self.trainer.estimated_stepping_batches / (self.trainer.max_epochs or 1)


def _refuse_top_k(k: int, classes: int) -> None:
    if k > classes:
        raise TrialError(f"evaluator.metrics: top_k is {k}, and the model tells {classes} classes apart")


def _top_k(k: int, classes: int) -> torchmetrics.Metric:
    _refuse_top_k(k, classes)
    return torchmetrics.classification.MulticlassAccuracy(
        num_classes=classes, top_k=k, average="micro", ignore_index=IGNORED, validate_args=False
    )


class ClassificationModule(SupervisedModule):
    """Compares logits `[B, C]` with class numbers `[B]`; the number of classes is taken from the first batch."""

    config: ClassificationConfig
    _weights: torch.Tensor | None = None  # in the dtype and on the device of the last output; not in the state dict

    def loss(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Return the cross-entropy, or the loss by import path."""
        if (own := self.compute_own_loss(output, target)) is not None:
            return own
        weights = self._weights_like(output) if class_weights(self) else None
        smoothing = float(self.config.label_smoothing)  # type: ignore[arg-type]
        try:
            return F.cross_entropy(output, target, weights, label_smoothing=smoothing)
        except (RuntimeError, IndexError, ValueError, TypeError) as error:
            raise explained(error, output, target) from None

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        """Log and return the loss of one batch, whose samples may be mixed."""
        if not self._mixes:
            return super().training_step(batch, batch_idx)
        x, target = pair_of(batch, self.config.kind)
        mixed = mix(self.config, x)
        output = self(mixed.x)
        self.check_output(output, target)
        loss = mixed.loss(self.loss, output, target)
        self.log("train_loss", loss, on_step=False, on_epoch=True, batch_size=len(target))
        return loss

    @property
    def _mixes(self) -> bool:
        return self.config.mixup is not None or self.config.cutmix is not None

    def why_solo(self, optimizer: torch.optim.Optimizer) -> str | None:
        """Return why it can't be stepped with others, None if it can."""
        return "it mixes its batches by its own random stream" if self._mixes else super().why_solo(optimizer)

    def _weights_like(self, output: torch.Tensor) -> torch.Tensor:
        """Return the weights of the classes, in the precision of the loss. Raises TrialError for too few or many."""
        weights = class_weights(self)
        if output.ndim < 2 or output.shape[1] != len(weights):
            classes = f"tells {output.shape[1]} classes apart" if output.ndim > 1 else f"gives {tuple(output.shape)}"
            raise TrialError(
                f"evaluator.class_weights: there are {len(weights)}, and the model {classes}; give one for each class "
                "('balanced' gives as many as the training data have)"
            )
        dtype = output.dtype if output.dtype in (torch.float32, torch.float64) else torch.float32  # as autocast's loss
        kept = self._weights
        if kept is None or (kept.device, kept.dtype) != (output.device, dtype):
            with torch.inference_mode(False):  # or autograd refuses what validation made
                self._weights = kept = torch.tensor(weights, dtype=dtype, device=output.device)
        return kept

    def refuse_targets(self, target: torch.Tensor) -> None:
        """Raise TrialError for targets that are no class numbers, if there is a metric of those."""
        ours = [m if isinstance(m, str) else m.name for m in self.config.metrics if isinstance(m, str) or m.top_k]
        if ours:
            refuse_no_classes(target, ours[0])

    def refuse_output(self, output: torch.Tensor, target: torch.Tensor) -> None:
        """Raise TrialError for an output that is no logits `[B, C]`, or has too few classes for a `top_k`."""
        refuse_no_logits(output, target)
        for metric in self.config.metrics:
            if isinstance(metric, MetricConfig) and metric.top_k is not None:
                _refuse_top_k(int(metric.top_k), output.shape[1])

    def make_metrics(self, output: torch.Tensor) -> dict[str, torchmetrics.Metric]:
        """Return the metrics: accuracy over all samples; the others as unweighted means over classes.

        Samples that are labelled `IGNORED` do not count.
        """
        classes = output.shape[-1]
        kinds = torchmetrics.classification
        options: dict[str, Any] = {"num_classes": classes, "validate_args": False, "ignore_index": IGNORED}
        makers: dict[str, Callable[[], torchmetrics.Metric]] = {
            "accuracy": lambda: Accuracy(classes),
            "f1": lambda: kinds.MulticlassF1Score(**options),
            "precision": lambda: kinds.MulticlassPrecision(**options),
            "recall": lambda: kinds.MulticlassRecall(**options),
            "auroc": lambda: AUROC(classes),
        }
        return self.make_own_metrics(makers, classes)


class RegressionModule(SupervisedModule):
    """Compares predictions `[B]` or `[B, T]` with targets of the same shape; `[B, 1]` counts as `[B]` in both."""

    config: RegressionConfig

    def compare(self, batch: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Return predictions and targets without a last dimension of one, targets as `as_numbers` gives them."""
        output, target = super().compare(batch)
        if not isinstance(target, torch.Tensor) and (self.own_loss is None or not hasattr(target, "ndim")):
            raise TrialError(no_numbers(f"a {type(target).__name__}"))
        return squeezed(output), as_numbers(squeezed(target), output)

    def refuse_output(self, output: torch.Tensor, target: torch.Tensor) -> None:
        """Raise TrialError if a metric by name would refuse predictions of this shape."""
        named = [metric for metric in self.config.metrics if isinstance(metric, str)]
        if named and output.shape != target.shape:
            raise _other_shape(output, target)
        if "r2" in named and output.ndim > 2:
            raise TrialError(
                f"evaluator.metrics: 'r2' takes predictions [B] or [B, T], and the model gives {tuple(output.shape)}; "
                "leave it out"
            )

    def loss(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Return the configured loss, averaged over all values."""
        if (own := self.compute_own_loss(output, target)) is not None:
            return own
        if output.shape != target.shape:
            raise _other_shape(output, target)
        return REGRESSION_LOSSES[str(self.config.loss)](output, target)

    def make_metrics(self, output: torch.Tensor) -> dict[str, torchmetrics.Metric]:
        """Return metrics over all values of an epoch; several targets `[B, T]` have equal weights."""
        makers: dict[str, Callable[[], torchmetrics.Metric]] = {
            "mse": torchmetrics.MeanSquaredError,
            "rmse": lambda: torchmetrics.MeanSquaredError(squared=False),
            "mae": torchmetrics.MeanAbsoluteError,
            "r2": R2,
        }
        return self.make_own_metrics(makers)


def _other_shape(output: torch.Tensor, target: torch.Tensor) -> TrialError:
    return TrialError(
        f"predictions have shape {tuple(output.shape)}, targets {tuple(target.shape)}; let the model give one number "
        "for each number of the targets, or train it by 'kind: lightning'"
    )


def _without_metrics(module: nn.Module, keys: Any) -> None:
    """Let a state be loaded whether it has weights and buffers of metrics or not: those are made anew."""
    for names in keys:
        names[:] = [name for name in names if not name.startswith("val_metrics.")]


def class_weights(module: SupervisedModule) -> list[float]:
    """Return the weights of a module's classes; empty if all count the same, or their samples are not counted."""
    weights = getattr(module.config, "class_weights", None)
    return [float(weight) for weight in weights] if isinstance(weights, list) else []


def as_numbers(target: torch.Tensor, output: torch.Tensor) -> torch.Tensor:
    """Return targets of regression in the precision of the predictions, but no lower one than float32.

    A data set of NumPy's or Python's numbers gives float64, one of counts whole numbers.
    """
    return target.to(torch.promote_types(output.dtype, torch.float32))


def squeezed(values: torch.Tensor, leading: int = 1) -> torch.Tensor:
    """Return `values` without a last dimension of one, unless it is one of the `leading` ones (such as samples)."""
    return values.squeeze(-1) if values.ndim > leading else values


class _Supervised(Evaluator):
    """Base of the ready-made evaluators."""

    def __init__(self, config: SupervisedConfig, base_dir: Path | None = None):
        super().__init__(config)
        self.base_dir = base_dir


class Classification(_Supervised):
    """`kind: classification`."""

    config: ClassificationConfig

    def module(self, model: nn.Module) -> ClassificationModule:
        """Return a ClassificationModule."""
        return ClassificationModule(model, self.config, self.base_dir)


class Regression(_Supervised):
    """`kind: regression`."""

    config: RegressionConfig

    def module(self, model: nn.Module) -> RegressionModule:
        """Return a RegressionModule."""
        return RegressionModule(model, self.config, self.base_dir)
