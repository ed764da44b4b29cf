"""Losses and metrics of several members at once: vectors over the members instead of a loop over their modules."""

import functools
from collections.abc import Callable, Container, Sequence
from typing import Any, Protocol

import torch
import torchmetrics
from torch import Tensor

from nasflow.autocast import without_casts
from nasflow.config.evaluator.metrics import metric_name
from nasflow.evaluator.ready_made.group_losses import ClassificationLosses, RegressionLosses
from nasflow.evaluator.ready_made.own_parts import metric_value
from nasflow.evaluator.ready_made.pairs import IGNORED, class_numbers, explained
from nasflow.evaluator.ready_made.supervised import (
    ClassificationModule,
    RegressionModule,
    SupervisedModule,
    as_numbers,
    class_weights,
    squeezed,
)


class SupervisedGroup:
    """Computes what the `training_step` and `validation_step` of members that share a batch would log.

    A member's numbers are those of its own module in a `Logbook`. They are the same, bit for bit, whatever other
    members are in the group, even if the others' outputs are NaN. Metrics are computed as the modules' own are.

    Args:
        modules: one per member; `fits` says whether they can be a group.

    Raises:
        ValueError: they can't be a group.
    """

    def __init__(self, modules: Sequence[SupervisedModule]):
        if not self.fits(modules):
            raise ValueError("these modules can't be a group; ask SupervisedGroup.fits first")
        self._modules = list(modules)
        self._trained, self._validated = _Means(), _Means()
        self._families: list[_Family] | None = None
        self._vector_losses = self._make_losses()

    @staticmethod
    def fits(modules: Sequence[SupervisedModule]) -> bool:
        """Whether all are exactly ClassificationModule or all RegressionModule (a subclass may override anything).

        Label smoothing, weights of classes and the regression loss may differ between them, the metrics may not.
        """
        if not modules or type(modules[0]) not in (ClassificationModule, RegressionModule):
            return False
        first = modules[0]
        return all(
            type(module) is type(first)
            and _metrics(module) == _metrics(first)
            and (module.own_loss is None) == (first.own_loss is None)
            and len(class_weights(module)) == len(class_weights(first))
            and (isinstance(module, RegressionModule) or 0 <= _smoothing(module) <= 1)
            for module in modules
        )

    def losses(self, outputs: Tensor, target: Tensor) -> Tensor:
        """Return the training losses `[N]` for outputs `[N, B, ...]` on one batch, and add them to `train_loss`.

        Call `count` for the batch as well.

        Args:
            outputs: the output of each member's model; gradients flow back to them.
            target: the batch's targets, the same for all members.

        Raises:
            TrialError: the shapes don't fit each other; as from the module's own loss.
        """
        outputs, target = self._shaped(outputs, target)
        self._check(outputs, target)
        losses = self._losses(outputs, target)
        self._trained.add_weighted(losses.detach(), len(target))
        return losses

    def losses_and_gradients(
        self, outputs: Tensor, target: Tensor, scales: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the losses as `losses` does, but detached, and the gradients of their sum for the outputs.

        Args:
            scales: `[N]`, by which each member's loss is multiplied before its backward; none: by 1.
        """
        vectors = self._vector_losses
        if scales is None and isinstance(vectors, ClassificationLosses) and vectors.fits(outputs, target):
            self._check(outputs, target)
            found = vectors.with_gradients(outputs, target)
            if found is not None:
                self._trained.add_weighted(found[0], len(target))
                return found
        with torch.enable_grad():
            given = outputs.detach().requires_grad_()
            losses = self.losses(given, target)
            total = losses.sum() if scales is None else (losses * scales).sum()
        with without_casts(outputs.device.type):
            [gradients] = torch.autograd.grad(total, given)
        return losses.detach(), gradients

    def count(self, samples: int) -> None:
        """Count a training batch, on the host."""
        self._trained.count(samples)

    @torch.no_grad()
    def validate(self, outputs: Tensor, target: Tensor) -> None:
        """Add a validation batch to `val_loss` and every metric; shapes as for `losses`.

        Raises:
            TrialError: the outputs don't fit the targets or metrics; as from the module's own validation step.
        """
        outputs, target = self._shaped(outputs, target)
        if self._families is None:
            self._modules[0].refuse_output(outputs[0], target)
        self._validated.add_weighted(self._losses(outputs, target), len(target))
        self._validated.count(len(target))
        if self._families is None:
            made = self._modules[0].make_metrics(outputs[0])
            self._modules[0].refuse_targets(target)
            on_device = {name: metric.to(outputs.device) for name, metric in made.items()}
            by_name = {metric for metric in _metrics(self._modules[0]) if isinstance(metric, str)}
            self._families = _families(on_device, by_name, len(outputs))
        target = class_numbers(target)
        for family in self._families:
            family.add(outputs, target)

    def training_sums(self) -> list[tuple[float, int]]:
        """Return the sum that makes each member's `train_loss`, weighted by samples, and the number of samples."""
        return self._trained.sums() if self._trained else [(0.0, 0)] * len(self._modules)

    def go_on(self, sums: Sequence[tuple[float, int]]) -> None:
        """Continue `train_loss` from such sums, one a member; those without samples are not read."""
        self._trained.go_on(sums, self._modules[0].device)

    def close_training(self) -> list[dict[str, float]]:
        """Return each member's `train_loss` since the last call, a mean over samples. Empty if there was no batch."""
        return self._by_member({"train_loss": self._trained.take_means()} if self._trained else {})

    def close_validation(self) -> list[dict[str, float]]:
        """Return each member's `val_loss` and `val_<metric>` since the last call. Empty if there was no batch."""
        if not self._validated:
            return self._by_member({})
        values = {"val_loss": self._validated.take_means()}
        found: dict[str, list[float]] = {}
        for family in self._families or []:
            found.update(family.close())
        return self._by_member(values | {f"val_{name}": found[name] for name in _metric_names(self._modules[0])})

    def _make_losses(self) -> ClassificationLosses | RegressionLosses | None:
        if self._modules[0].own_loss is not None:
            return None  # it is called member by member
        if isinstance(self._modules[0], ClassificationModule):
            weights = [own for module in self._modules if (own := class_weights(module))]
            return ClassificationLosses([_smoothing(module) for module in self._modules], weights)
        return RegressionLosses([str(module.config.loss) for module in self._modules])

    def _losses(self, outputs: Tensor, target: Tensor) -> Tensor:
        if self._vector_losses is not None and self._vector_losses.fits(outputs, target):
            try:
                return self._vector_losses(outputs, target)
            except (RuntimeError, IndexError) as error:
                raise explained(error, outputs[0], target) from None
        # rare forms of targets that torch's losses accept, and shapes for which they raise their own errors
        return torch.stack([module.loss(own, target) for module, own in zip(self._modules, outputs, strict=True)])

    def _check(self, outputs: Tensor, target: Tensor) -> None:
        if not self._modules[0].is_checked:
            self._modules[0].check_output(outputs[0], target)

    def _shaped(self, outputs: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Return both in the shapes that the module's own `compare` returns, member-major and contiguous.

        The order in which torch sums depends on strides, and in a strided tensor on a row's position.
        """
        if isinstance(self._modules[0], RegressionModule):
            outputs, target = squeezed(outputs, leading=2), as_numbers(squeezed(target), outputs)
        return outputs.contiguous(), target

    def _by_member(self, values: dict[str, list[float]]) -> list[dict[str, float]]:
        return [{name: column[row] for name, column in values.items()} for row in range(len(self._modules))]


class _Sum:
    """A sum over batches, kept in one place; the first dimension of its tensors is the members.

    Its memory stays where it is from batch to batch and from epoch to epoch.
    """

    def __init__(self) -> None:
        self._total: Tensor | None = None
        self._has_any = False

    def __bool__(self) -> bool:
        return self._has_any

    def add(self, part: Tensor) -> None:
        """Add a batch."""
        if self._total is None:
            with torch.inference_mode(False):  # or only validation in inference mode could write to it
                self._total = torch.zeros_like(part)
        self._total.add_(part)
        self._has_any = True

    def take(self) -> Tensor:
        """Return the sum, and reset it."""
        assert self._total is not None  # noqa: S101 - for the type checker
        total = self._total.clone()
        self._total.zero_()
        self._has_any = False
        return total


class _Means(_Sum):
    """Means over samples of values that members log, summed in float64 as in a Logbook."""

    def __init__(self) -> None:
        super().__init__()
        self._samples = 0

    def add_weighted(self, values: Tensor, samples: int) -> None:
        """Add `values [N]`, means over this many samples."""
        self.add(values.double() * samples)

    def count(self, samples: int) -> None:
        """Count samples that were added, on the host."""
        self._samples += samples
        self._has_any = True

    def sums(self) -> list[tuple[float, int]]:
        """Return the sums, each with the number of samples."""
        assert self._total is not None  # noqa: S101 - for the type checker
        return [(total, self._samples) for total in self._total.tolist()]

    def go_on(self, sums: Sequence[tuple[float, int]], device: torch.device) -> None:
        """Continue from sums of the same samples."""
        self._samples = max(samples for _, samples in sums)
        if self._samples:
            self._total = torch.tensor([total for total, _ in sums], dtype=torch.float64, device=device)
            self._has_any = True

    def take_means(self) -> list[float]:
        """Return the means, and reset them."""
        means: list[float] = (self.take() / self._samples).tolist()
        self._samples = 0
        return means


# --- metrics -----------------------------------------------------------------------------------------------------
# A torchmetrics object is updated with the first member's outputs, with all its checks. Numbers that members share
# (samples, sums over targets) are read from its state; the others are summed beside it as vectors over the members.
# At the end of the epoch its state is set to the vectors, and its own `compute` returns all members' values at once.


class _Family(Protocol):
    """Metrics that are accumulated in the same way, for all members."""

    def add(self, outputs: Tensor, target: Tensor) -> None:
        """Add a batch, with outputs `[N, B, ...]`."""

    def close(self) -> dict[str, list[float]]:
        """Return every metric's values by member, and reset them."""


def _families(metrics: dict[str, torchmetrics.Metric], by_name: Container[str], members: int) -> list[_Family]:
    """Sort the metrics into families, which compute them for all members at once; others go member by member."""
    known: dict[str, Callable[[dict[str, torchmetrics.Metric]], _Family]] = {
        **dict.fromkeys(("accuracy", "f1", "precision", "recall"), _Answers),
        **dict.fromkeys(("mse", "rmse", "mae", "r2"), _Errors),
    }
    others = functools.partial(_OneByOne, members=members)
    kinds = {name: known.get(name, others) if name in by_name else others for name in metrics}
    chosen = dict.fromkeys(kinds.values())
    return [kind({name: metric for name, metric in metrics.items() if kinds[name] is kind}) for kind in chosen]


class _Answers:
    """Metrics from counts of predicted and correct classes: torchmetrics' tp, fp and fn."""

    def __init__(self, metrics: dict[str, Any]):
        self._metrics = metrics
        self._by_class = any(metric.average != "micro" for metric in metrics.values())
        self._right, self._given = _Sum(), _Sum()  # [N, C], or [N, 1] for all classes together

    def add(self, outputs: Tensor, target: Tensor) -> None:
        for metric in self._metrics.values():
            metric.update(outputs[0], target)
        answers = outputs.argmax(-1)
        hits, counted = (answers == target).long(), (target != IGNORED).long()
        if self._by_class:
            none = answers.new_zeros(len(outputs), outputs.shape[-1])
            self._right.add(none.scatter_add(1, (target.long() * counted).expand_as(answers), hits))
            self._given.add(none.scatter_add(1, answers, counted.expand_as(answers)))
        else:
            self._right.add(hits.sum(1, keepdim=True))
            self._given.add(counted.sum().repeat(len(outputs), 1))

    def close(self) -> dict[str, list[float]]:
        right, given = self._right.take(), self._given.take()
        all_right, all_given = right.sum(1, keepdim=True), given.sum(1, keepdim=True)
        values = {}
        for name, metric in self._metrics.items():
            tp, answers = (all_right, all_given) if metric.average == "micro" else (right, given)
            states = {"tp": tp, "fp": answers - tp, "fn": metric.tp + metric.fn - tp}  # no metric here reads tn
            values[name] = _values(metric, states, multidim_average="samplewise")
        return values


class _Errors:
    """Metrics from sums of prediction errors, as torchmetrics defines them."""

    def __init__(self, metrics: dict[str, Any]):
        self._metrics = metrics
        self._squares, self._sizes = _Sum(), _Sum()  # [N, ...], over samples

    def add(self, outputs: Tensor, target: Tensor) -> None:
        for metric in self._metrics.values():
            metric.update(outputs[0], target)
        errors = outputs - target
        self._squares.add(errors.double().square().sum(1))
        self._sizes.add(errors.abs().sum(1, dtype=torch.float64))

    def close(self) -> dict[str, list[float]]:
        squares, sizes = self._squares.take(), self._sizes.take()
        values = {}
        for name, metric in self._metrics.items():
            if name == "r2":
                metric.residual = squares
                values[name] = metric.scores().reshape(len(squares), -1).mean(1).tolist()
                metric.reset()
            elif name == "mae":
                values[name] = _values(metric, {"sum_abs_error": sizes.reshape(len(sizes), -1).sum(1)})
            else:
                values[name] = _values(metric, {"sum_squared_error": squares.reshape(len(squares), -1).sum(1)})
        return values


class _OneByOne:
    """Metrics that keep every sample, so that each member has its own."""

    def __init__(self, metrics: dict[str, Any], members: int):
        self._metrics = {name: [metric.clone() for _ in range(members)] for name, metric in metrics.items()}

    def add(self, outputs: Tensor, target: Tensor) -> None:
        for metrics in self._metrics.values():
            for metric, own in zip(metrics, outputs, strict=True):
                metric.update(own, target)

    def close(self) -> dict[str, list[float]]:
        values = {name: [metric_value(name, metric) for metric in metrics] for name, metrics in self._metrics.items()}
        for metrics in self._metrics.values():
            for metric in metrics:
                metric.reset()
        return values


def _values(metric: Any, states: dict[str, Tensor], **options: str) -> list[float]:
    """Compute the values of all members by one `compute`, then reset. `states` has them in its first dimension."""
    members = len(next(iter(states.values())))
    usual = {name: getattr(metric, name) for name in options}
    for name, value in {**states, **options}.items():
        setattr(metric, name, value)
    values: list[float] = metric.compute().reshape(members, -1).mean(1).tolist()
    metric.reset()
    for name, value in usual.items():
        setattr(metric, name, value)
    return values


def _metric_names(module: SupervisedModule) -> list[str]:
    return [metric_name(metric) for metric in _metrics(module)]


def _metrics(module: SupervisedModule) -> list[Any]:
    return list(module.config.metrics)


def _smoothing(module: SupervisedModule) -> float:
    return float(module.config.label_smoothing)  # type: ignore[arg-type,union-attr]
