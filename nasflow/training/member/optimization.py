"""The moving parts around a member's weights: its optimizer, schedules, clipping and early stop."""

import functools
import inspect
import math
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.optim import lr_scheduler
from torch.optim.lr_scheduler import ReduceLROnPlateau

from nasflow.config.evaluator.metrics import to_loss
from nasflow.config.evaluator.training import EarlyStoppingConfig
from nasflow.errors import TrialError
from nasflow.evaluator.ready_made.optimizers import Schedule
from nasflow.training.member.loss_scale import LossScale
from nasflow.training.member.saved_layout import SavedLayout

_WITHOUT_OWN_CODE = (
    *(Schedule, lr_scheduler.StepLR, lr_scheduler.MultiStepLR, lr_scheduler.ConstantLR, lr_scheduler.LinearLR),
    *(lr_scheduler.ExponentialLR, lr_scheduler.PolynomialLR, lr_scheduler.CosineAnnealingLR),
    *(lr_scheduler.CosineAnnealingWarmRestarts, lr_scheduler.OneCycleLR, ReduceLROnPlateau),
)
"""Schedules that run no code of the user's; others of torch's take functions."""


class Fitting:
    """Optimizers and their schedules, from any form that `configure_optimizers` may return.

    Args:
        manual: whether the module steps them in its `training_step`; else there is one optimizer, stepped here.
        step_schedule: the module's own `lr_scheduler_step`, called with a schedule and its metric or None.
        scale: of the losses in half precision; none in others.
        named: returns the module's parameters by name.

    Attributes:
        scale: as given.
        schedules: as dicts, with the `scheduler` and Lightning's other keys.
        steps: optimizer steps made.

    Raises:
        TrialError: there is something that is no optimizer or schedule, or no optimizer that is stepped here.
    """

    def __init__(
        self,
        configured: Any,
        clip_val: float | None,
        clip_algorithm: str,
        *,
        manual: bool = False,
        step_schedule: Callable[[Any, Any], None] | None = None,
        scale: LossScale | None = None,
        named: Callable[[], Iterable[tuple[str, torch.nn.Parameter]]] = tuple,
    ):
        self.optimizers, schedules = _normalize(configured)
        if not manual and len(self.optimizers) != 1:
            raise TrialError(
                f"configure_optimizers gave {len(self.optimizers)} optimizers; to train with several, set "
                "self.automatic_optimization = False and step them in training_step"
            )
        self.schedules = [_schedule_of(entry) for entry in schedules]
        for entry in () if manual or step_schedule is not None else self.schedules:
            _refuse_metric_of_step(entry)
        self.clip_val = clip_val if clip_val is not None and clip_val > 0 else None  # as Lightning takes it
        self.clip_algorithm = clip_algorithm
        self.steps = 0
        self.scale = scale
        self._scheduled = 0  # the last epoch after whose batches the schedules were stepped
        self._is_manual = manual
        self._step_schedule = step_schedule
        self._named = named
        self._begun = [len(own.param_groups) for own in self.optimizers]

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """The only optimizer."""
        return self.optimizers[0]

    @property
    def needs_closure(self) -> bool:
        """Whether the optimizer runs the step by itself, as LBFGS does several times."""
        closure = inspect.signature(self.optimizer.step).parameters.get("closure")
        return closure is not None and closure.default is inspect.Parameter.empty

    @functools.cached_property
    def may_draw(self) -> bool:
        """Whether a schedule runs code of the user's, which may draw random numbers, or change the model."""
        schedules = [entry["scheduler"] for entry in self.schedules]
        return self._step_schedule is not None or any(map(_runs_own_code, schedules))

    @property
    def steps_schedules(self) -> bool:
        """Whether a schedule has the interval "step"."""
        return any(entry.get("interval", "epoch") == "step" for entry in self.schedules)

    def count_step(self, steps: int = 1) -> None:
        """Count an optimizer step, or several."""
        self.steps += steps

    def step(self, loss: torch.Tensor | None, *, first: bool = True, last: bool = True) -> None:
        """Run backward, clip the gradients of the optimizer's parameters, and step.

        Args:
            loss: of a batch; None for one that is skipped.
            first: whether the batch is the first of a step: the others add to its gradients.
            last: whether it is the step's last.
        """
        if first:
            self.optimizer.zero_grad()
        if loss is not None:
            self.scaled(loss).backward()
        if not last:
            return
        with self.unscaled(self.optimizer) as overflows:
            if self.clip_val is not None:
                parameters = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
                if self.clip_algorithm == "norm":
                    torch.nn.utils.clip_grad_norm_(parameters, self.clip_val)
                else:
                    torch.nn.utils.clip_grad_value_(parameters, self.clip_val)
            if not overflows:
                self.optimizer.step()
        self.count_step()

    def scaled(self, loss: torch.Tensor) -> torch.Tensor:
        """Return what the backward of a loss begins with."""
        return loss if self.scale is None else loss * self.scale.value

    @contextmanager
    def unscaled(self, optimizer: torch.optim.Optimizer) -> Iterator[bool]:
        """Within this, the gradients are not scaled any more; it gives whether a step has to be skipped.

        A step for which no weight has a gradient tells nothing of the scale.

        Raises:
            TrialError: gradients are never finite.
        """
        if self.scale is None:
            yield False
            return
        found = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        overflows = self.scale.unscale(found)
        optimizer._opt_called = True  # type: ignore[attr-defined]  # or schedules warn if the first step is skipped
        yield overflows
        if found:
            self.scale.update(overflows)

    def end_batch(self, batch: int) -> None:
        """Step the schedules with the interval "step"; `batch` counts from 1 in each epoch, as in Lightning."""
        for entry in () if self._is_manual else self.schedules:
            if entry.get("interval", "epoch") == "step" and batch % entry.get("frequency", 1) == 0:
                self._advance(entry["scheduler"], None)

    def end_batches(self, epoch: int) -> None:
        """Step the schedules with the interval "epoch" that go by no metric, if that is still to be done in this epoch.

        Lightning does so after the last training batch, before its hook and the validation; `epoch` counts from 1.
        """
        if self._scheduled < epoch:
            self._scheduled = epoch
            for entry in self._due(epoch):
                if not goes_by_metric(entry):
                    self._advance(entry["scheduler"], None)

    def end_epoch(self, epoch: int, metrics: dict[str, float], validated: bool = True) -> None:
        """Step the schedules with the interval "epoch" that go by a metric; `epoch` counts from 1.

        Where it is a metric of validation, they wait for the next epoch with one.
        """
        for entry in filter(goes_by_metric, self._due(epoch)):
            name = entry.get("monitor", "val_loss")
            if name in metrics or (validated and entry.get("strict", True)):
                self._advance(entry["scheduler"], pick_metric(metrics, name, "lr_scheduler.monitor"))

    def _due(self, epoch: int) -> list[dict[str, Any]]:
        """Return the schedules that are stepped at the end of an epoch."""
        schedules = [] if self._is_manual else self.schedules
        by_epoch = [entry for entry in schedules if entry.get("interval", "epoch") == "epoch"]
        return [entry for entry in by_epoch if epoch % entry.get("frequency", 1) == 0]

    def _advance(self, schedule: Any, metric: float | None) -> None:
        if self._step_schedule is not None:
            self._step_schedule(schedule, metric)
        elif metric is None:
            schedule.step()
        else:
            schedule.step(metric)

    def state_dict(self, layout: SavedLayout | None = None) -> dict[str, Any]:
        """Return the states of optimizer and schedules, and the number of steps; with a `layout` for `Packer.pack`."""
        optimizers: list[Any] = (
            [own.state_dict() for own in self.optimizers]
            if layout is None
            else [layout.optimizer(position, own) for position, own in enumerate(self.optimizers)]
        )
        schedules: list[Any] = [entry["scheduler"].state_dict() for entry in self.schedules]
        if layout is not None:
            schedules = [layout.scalars(f"schedule {position}", own) for position, own in enumerate(schedules)]
        return {
            "optimizer": optimizers if self._is_manual else optimizers[0],
            "schedules": schedules,
            "steps": self.steps,
            "scheduled": self._scheduled,
            **({"loss_scale": self.scale.state_dict()} if self.scale else {}),
            **({"added": added} if (added := self._added()) else {}),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state."""
        self._add(state.get("added", []))
        states = state["optimizer"] if self._is_manual else [state["optimizer"]]
        for optimizer, saved in zip(self.optimizers, states, strict=True):
            optimizer.load_state_dict(saved)
        for entry, saved in zip(self.schedules, state["schedules"], strict=True):
            entry["scheduler"].load_state_dict(saved)
        self.steps = state["steps"]
        self._scheduled = state.get("scheduled", 0)
        if self.scale is not None:
            self.scale.load_state_dict(state["loss_scale"])

    def _added(self) -> list[list[list[str | None]]]:
        """Return of each optimizer the names of the parameters in each group that a hook has added."""
        if [len(own.param_groups) for own in self.optimizers] == self._begun:
            return []
        names = {parameter: name for name, parameter in self._named()}
        return [
            [[names.get(parameter) for parameter in group["params"]] for group in own.param_groups[begun:]]
            for own, begun in zip(self.optimizers, self._begun, strict=True)
        ]

    def _add(self, added: list[list[list[str | None]]]) -> None:
        """Add these groups, but for those that hooks have added again."""
        parameters = dict(self._named()) if added else {}
        for own, begun, groups in zip(self.optimizers, self._begun, added, strict=bool(added)):
            for names in groups[max(0, len(own.param_groups) - begun) :]:
                own.add_param_group({"params": [parameters[name] for name in names if name in parameters]})


class EarlyStop:
    """Decides when a member has stopped improving."""

    def __init__(self, config: EarlyStoppingConfig):
        self._metric = config.metric
        self._direction = config.direction
        self._patience = int(config.patience)  # type: ignore[arg-type]
        self._min_delta = float(config.min_delta)  # type: ignore[arg-type]
        self._best = math.inf
        self._waited = 0

    def update(self, metrics: dict[str, float], validated: bool = True) -> bool:
        """Take an epoch's metrics; True when the member should stop. An epoch without validation may lack the metric.

        Only what has ended with a validation has all its metrics, so no other epoch is the last.
        """
        if not validated and self._metric not in metrics:
            return False
        value = to_loss(pick_metric(metrics, self._metric, "early_stopping.metric"), self._direction)
        if value < self._best - self._min_delta:
            self._best, self._waited = value, 0
            return False
        self._waited += 1
        return validated and self._waited >= self._patience

    def state_dict(self) -> dict[str, Any]:
        """Return the best value so far, and the epochs since."""
        return {"best": self._best, "waited": self._waited}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state."""
        self._best, self._waited = state["best"], state["waited"]


def pick_metric(metrics: dict[str, float], name: str, key: str) -> float:
    """Return a metric by name. Raises TrialError with the config key and the existing names if there is none."""
    if name not in metrics:
        raise TrialError(f"{key}: no metric '{name}' was logged; there are: {', '.join(sorted(metrics)) or 'none'}")
    return metrics[name]


def _normalize(configured: Any) -> tuple[list[torch.optim.Optimizer], list[Any]]:
    """Return optimizers and schedules from any form that `configure_optimizers` may return."""
    schedules: list[Any] = []
    if isinstance(configured, list | tuple) and len(configured) == 2 and isinstance(configured[0], list | tuple):
        configured, schedule = configured
        schedules = list(schedule) if isinstance(schedule, list | tuple) else [schedule]
    entries = configured if isinstance(configured, list | tuple) else [configured]
    optimizers = []
    for entry in entries:
        optimizer = entry
        if isinstance(entry, dict):
            _warn_of_unread(entry, {"optimizer", "lr_scheduler", "monitor"})
            schedule = entry.get("lr_scheduler")
            if schedule is not None and not isinstance(schedule, dict):
                schedule = {"scheduler": schedule, "monitor": entry.get("monitor", "val_loss")}
            schedules += [schedule] if schedule is not None else []
            optimizer = entry.get("optimizer")
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise TrialError(f"configure_optimizers gave {type(optimizer).__name__}; it should give a torch optimizer")
        optimizers.append(optimizer)
    return optimizers, schedules


def _schedule_of(entry: Any) -> dict[str, Any]:
    """Return a schedule as a dict. Raises TrialError if it is none, or is stepped at no known time."""
    found = entry if isinstance(entry, dict) else {"scheduler": entry}
    _warn_of_unread(found, {"scheduler", "interval", "frequency", "monitor", "strict", "reduce_on_plateau", "name"})
    if "scheduler" not in found:
        keys = ", ".join(map(repr, found)) or "nothing"
        raise TrialError(f"configure_optimizers gave a schedule with {keys}; put torch's scheduler under 'scheduler'")
    schedule, interval, frequency = found["scheduler"], found.get("interval", "epoch"), found.get("frequency", 1)
    if isinstance(schedule, type) or not hasattr(schedule, "step"):
        name = f"the class {schedule.__name__}" if isinstance(schedule, type) else f"a {type(schedule).__name__}"
        raise TrialError(f"configure_optimizers gave {name} as a schedule; give one of torch's, made for the optimizer")
    if interval not in ("epoch", "step"):
        raise TrialError(f"configure_optimizers gave a schedule with 'interval' {interval!r}; use 'epoch' or 'step'")
    if not isinstance(frequency, int) or frequency < 1:
        raise TrialError(f"configure_optimizers gave a schedule with 'frequency' {frequency!r}; use 1, 2, ...")
    return found


def _refuse_metric_of_step(entry: dict[str, Any]) -> None:
    """Raise TrialError for a schedule that would need a metric of each step."""
    if entry.get("interval") == "step" and goes_by_metric(entry):
        raise TrialError(
            f"configure_optimizers gave a {type(entry['scheduler']).__name__} with 'interval' 'step'; a schedule that "
            "goes by a metric is stepped after epochs: use 'epoch'"
        )


def _runs_own_code(schedule: Any) -> bool:
    if type(schedule) in (lr_scheduler.SequentialLR, lr_scheduler.ChainedScheduler):
        return any(map(_runs_own_code, schedule._schedulers))
    return type(schedule) not in _WITHOUT_OWN_CODE


def goes_by_metric(entry: dict[str, Any]) -> bool:
    """Whether a schedule is stepped with a metric."""
    return bool(entry.get("reduce_on_plateau", isinstance(entry["scheduler"], ReduceLROnPlateau)))


def _warn_of_unread(entry: dict[str, Any], known: set[str]) -> None:
    """Warn of keys that nothing reads, as Lightning does; once of each."""
    for key in entry.keys() - known:
        warnings.warn(
            f"configure_optimizers gave the key {key!r}, which is not read; there are: {', '.join(sorted(known))}",
            stacklevel=2,
        )
