"""A torchmetrics Metric of several members as one."""

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torchmetrics

from nasflow.training.unit.lockstep.joint.purity import is_plain
from nasflow.training.unit.lockstep.joint.view import NotJointError, by_row, rows


class JointMetric:
    """Takes the place of the members' metrics within `torch.vmap`.

    Updates and values are computed there, from stacked states; where that can't be done, as for a metric that counts by
    `torch.bincount`, by a copy of each member's metric.

    Args:
        name: of the attribute.
        metrics: the members', None for one that has left.
        marker: returns the marker of the running step (`rows`).

    Attributes:
        is_used: whether the running step uses it.

    Raises:
        NotJointError: they differ, keep lists, or are none of torchmetrics'.
    """

    def __init__(self, name: str, metrics: Sequence[torchmetrics.Metric | None], marker: Callable[[], torch.Tensor]):
        present = [metric for metric in metrics if metric is not None]
        first = present[0]
        self.name = name
        self.is_used = False
        self._metrics, self._marker = list(metrics), marker
        defaults = {key: value for key, value in first._defaults.items() if isinstance(value, torch.Tensor)}
        known = type(first).__module__.partition(".")[0] == "torchmetrics"
        if not known or not _alike(present) or len(defaults) < len(first._defaults):
            raise NotJointError(f"self.{name} keeps lists, is none of torchmetrics', or differs")
        self._stacked = {key: torch.stack([getattr(one or first, key) for one in metrics]) for key in defaults}
        self._defaults = {key: torch.stack([value] * len(metrics)) for key, value in defaults.items()}
        self._first, self._one = first, copy.deepcopy(first)
        self._each: list[torchmetrics.Metric] = []  # copies, if they are computed one by one
        self._count = first._update_count

    def begin(self) -> None:
        """Prepare for another step."""
        self.is_used = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Update, and return the value for these arguments alone."""
        return self._run("__call__", args, kwargs)

    def update(self, *args: Any, **kwargs: Any) -> None:
        """Update."""
        self._run("update", args, kwargs)

    def states(self) -> dict[str, torch.Tensor]:
        """Return the stacked states after a step, within `torch.vmap`."""
        return {} if self._each else {key: getattr(self._one, key) for key in self._stacked}

    def take(self, states: Mapping[str, torch.Tensor]) -> None:
        """Keep the states `[n, ...]` after a step."""
        if not self._each:
            self._stacked = {key: value.detach() for key, value in states.items()}
            self._count = self._one._update_count

    def give(self) -> None:
        """Give the members their states."""
        for row, metric in enumerate(self._metrics):
            if metric is None:
                continue
            count = self._each[row]._update_count if self._each else self._count
            if metric._update_count != count:
                self._set(metric, row, count)

    def _set(self, metric: torchmetrics.Metric, row: int, count: int) -> None:
        for key, value in self._stacked.items():
            setattr(metric, key, (getattr(self._each[row], key) if self._each else value[row]).clone())
        metric._update_count, metric._computed = count, None

    def _run(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not self._each:
            try:
                return getattr(self._ready(), name)(*args, **kwargs)
            except Exception:  # torch.vmap does not know one of its operations, or they are wrong for this metric
                each = [copy.deepcopy(self._first) for _ in self._metrics]
                for row, metric in enumerate(each):
                    self._set(metric, row, self._count)
                self._each = each
        if kwargs or not all(isinstance(arg, torch.Tensor) for arg in args):
            raise NotJointError(f"self.{self.name} gets other things than tensors")
        self.is_used = True
        return by_row(self._marker(), lambda row, *own: getattr(self._each[row], name)(*own), *args)

    def _ready(self) -> torchmetrics.Metric:
        if not self.is_used:
            self.is_used = True
            one = self._one
            for key, value in self._stacked.items():
                setattr(one, key, rows(self._marker(), lambda _, value=value: value.clone()))
                one._defaults[key] = rows(self._marker(), lambda _, key=key: self._defaults[key])
            one._update_count, one._computed, one._forward_cache = self._count, None, None
        return self._one

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise NotJointError(f"it uses {self.__dict__.get('name', 'a metric')}.{name}")


def _alike(metrics: Sequence[torchmetrics.Metric]) -> bool:
    """Whether metrics have the same class, options and number of updates."""
    first = metrics[0]
    own = {key: value for key, value in vars(first).items() if not key.startswith("_") and not callable(value)}
    options = {key: value for key, value in own.items() if key not in first._defaults}
    if not all(map(is_plain, options.values())):
        return False
    return all(
        type(one) is type(first)
        and one._update_count == first._update_count
        and all(vars(one).get(key) == value for key, value in options.items())
        for one in metrics
    )
