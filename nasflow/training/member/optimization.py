"""The moving parts around a member's weights: its optimizer, schedules, clipping and early stop."""

import math
from typing import Any

import torch
from torch.optim.lr_scheduler import ReduceLROnPlateau

from nasflow.config.evaluator import EarlyStoppingConfig, to_loss
from nasflow.errors import TrialError
from nasflow.evaluator.optimizers import Schedule


class Fitting:
    """One optimizer and its schedules, from any form that `configure_optimizers` may return.

    Raises:
        TrialError: there are several optimizers, or something that is not an optimizer.
    """

    def __init__(self, configured: Any, clip_val: float | None, clip_algorithm: str):
        self.optimizer, schedules = _normalize(configured)
        self._schedules = [entry if isinstance(entry, dict) else {"scheduler": entry} for entry in schedules]
        self.clip_val = clip_val
        self.clip_algorithm = clip_algorithm
        self.steps = 0

    @property
    def may_draw(self) -> bool:
        """Whether a schedule may draw random numbers."""
        return any(type(entry["scheduler"]) is not Schedule for entry in self._schedules)

    @property
    def steps_schedules(self) -> bool:
        """Whether a schedule has the interval "step"."""
        return any(entry.get("interval", "epoch") == "step" for entry in self._schedules)

    def step(self, loss: torch.Tensor) -> None:
        """Run backward, clip the gradients of the optimizer's parameters, and step."""
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        if self.clip_val is not None:
            parameters = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
            if self.clip_algorithm == "norm":
                torch.nn.utils.clip_grad_norm_(parameters, self.clip_val)
            else:
                torch.nn.utils.clip_grad_value_(parameters, self.clip_val)
        self.optimizer.step()
        self.steps += 1

    def end_batch(self, batch: int) -> None:
        """Step the schedules with the interval "step"; `batch` counts from 1 in each epoch, as in Lightning."""
        for entry in self._schedules:
            if entry.get("interval", "epoch") == "step" and batch % entry.get("frequency", 1) == 0:
                entry["scheduler"].step()

    def end_epoch(self, epoch: int, metrics: dict[str, float]) -> None:
        """Step the schedules with the interval "epoch"; `epoch` counts from 1."""
        for entry in self._schedules:
            if entry.get("interval", "epoch") != "epoch" or epoch % entry.get("frequency", 1):
                continue
            if isinstance(entry["scheduler"], ReduceLROnPlateau):
                entry["scheduler"].step(pick_metric(metrics, entry.get("monitor", "val_loss"), "lr_scheduler.monitor"))
            else:
                entry["scheduler"].step()

    def state_dict(self) -> dict[str, Any]:
        """Return the states of optimizer and schedules, and the number of steps."""
        return {
            "optimizer": self.optimizer.state_dict(),
            "schedules": [entry["scheduler"].state_dict() for entry in self._schedules],
            "steps": self.steps,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state."""
        self.optimizer.load_state_dict(state["optimizer"])
        for entry, saved in zip(self._schedules, state["schedules"], strict=True):
            entry["scheduler"].load_state_dict(saved)
        self.steps = state["steps"]


class EarlyStop:
    """Decides when a member has stopped improving."""

    def __init__(self, config: EarlyStoppingConfig):
        self._metric = config.metric
        self._direction = config.direction
        self._patience = int(config.patience)  # type: ignore[arg-type]
        self._min_delta = float(config.min_delta)  # type: ignore[arg-type]
        self._best = math.inf
        self._waited = 0

    def update(self, metrics: dict[str, float]) -> bool:
        """Take an epoch's metrics; True when the member should stop."""
        value = to_loss(pick_metric(metrics, self._metric, "early_stopping.metric"), self._direction)
        if value < self._best - self._min_delta:
            self._best, self._waited = value, 0
        else:
            self._waited += 1
        return self._waited >= self._patience

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


def _normalize(configured: Any) -> tuple[torch.optim.Optimizer, list[Any]]:
    """Return one optimizer and a list of schedules from any form that `configure_optimizers` may return."""
    schedules: list[Any] = []
    if isinstance(configured, tuple) and len(configured) == 2 and isinstance(configured[0], list | tuple):
        configured, schedules = list(configured[0]), list(configured[1])
    if isinstance(configured, list | tuple):
        if len(configured) != 1:
            raise TrialError(f"configure_optimizers gave {len(configured)} optimizers; a member trains with one")
        configured = configured[0]
    if isinstance(configured, dict):
        schedule = configured.get("lr_scheduler")
        if schedule is not None and not isinstance(schedule, dict):
            schedule = {"scheduler": schedule, "monitor": configured.get("monitor", "val_loss")}
        schedules = [*schedules, schedule] if schedule is not None else schedules
        configured = configured.get("optimizer")
    if not isinstance(configured, torch.optim.Optimizer):
        raise TrialError(f"configure_optimizers gave {type(configured).__name__}; it should give a torch optimizer")
    return configured, schedules
