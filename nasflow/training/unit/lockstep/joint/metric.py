"""A torchmetrics Metric of several members as one."""

import copy
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
import torchmetrics
from torchmetrics.utilities.data import dim_zero_max, dim_zero_min, dim_zero_sum

from nasflow.training.unit.lockstep.joint.purity import exact, is_plain
from nasflow.training.unit.lockstep.joint.view import FAILED, NotJointError, by_row, rows, values_of_buffers

States = Mapping[str, torch.Tensor]

_REDUCTIONS = (dim_zero_sum, dim_zero_max, dim_zero_min)


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
        failed: what the metrics of members raised in this step, by row, if they are computed one by one.

    Raises:
        NotJointError: they differ, keep lists, or are none of torchmetrics'.
    """

    def __init__(self, name: str, metrics: Sequence[torchmetrics.Metric | None], marker: Callable[[], torch.Tensor]):
        present = [metric for metric in metrics if metric is not None]
        first = present[0]
        self.name = name
        self.is_used = False
        self.failed: dict[int, Exception] = {}
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
        self._given: tuple[States, States] | None = None

    @property
    def is_recordable(self) -> bool:
        """Whether its updates compute the same each time: a mean of states depends on how many there were."""
        return not self._each and all(reduction in _REDUCTIONS for reduction in self._first._reductions.values())

    @property
    def updates(self) -> int:
        """How often the running step has updated it."""
        return self._one._update_count - self._count if self.is_used and not self._each else 0

    @property
    def stacked(self) -> dict[str, torch.Tensor]:
        """The states `[n, ...]` before the running step."""
        return self._stacked

    @property
    def defaults(self) -> dict[str, torch.Tensor]:
        """The states `[n, ...]` that it begins with."""
        return self._defaults

    def signature(self) -> Hashable:
        """Return what determines what it computes from its states."""
        return type(self._first), _signature(self._first)

    def begin(self, given: tuple[States, States] | None = None) -> None:
        """Prepare for another step, within `torch.vmap` with one member's states and defaults, if these are given."""
        self.is_used, self._given = False, given
        self.failed.clear()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Update, and return the value for these arguments alone."""
        return self._run("__call__", args, kwargs)

    def update(self, *args: Any, **kwargs: Any) -> None:
        """Update."""
        self._run("update", args, kwargs)

    def states(self) -> dict[str, torch.Tensor]:
        """Return the stacked states after a step, within `torch.vmap`."""
        return {} if self._each else {key: getattr(self._one, key) for key in self._stacked}

    def take(self, states: States, updates: int) -> None:
        """Keep the states `[n, ...]` after a step that has updated it so often."""
        if not self._each:
            self._stacked = {key: value.detach() for key, value in states.items()}
            self._count += updates

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
        if self._given is not None:
            return getattr(self._ready(), name)(*args, **kwargs)
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
        return by_row(self._marker(), partial(self._run_one, name), *args)

    def _run_one(self, name: str, row: int, *args: torch.Tensor) -> Any:
        try:
            return getattr(self._each[row], name)(*args)
        except Exception as error:  # such as values that it refuses
            self.failed[row] = error
            return FAILED

    def _ready(self) -> torchmetrics.Metric:
        if not self.is_used:
            self.is_used = True
            one = self._one
            states, defaults = self._given or (self._bring(self._stacked), self._bring(self._defaults))
            for key in self._stacked:
                setattr(one, key, states[key])
                one._defaults[key] = defaults[key]
            one._update_count, one._computed, one._forward_cache = self._count, None, None
        return self._one

    def _bring(self, stacked: States) -> States:
        return {key: rows(self._marker(), lambda _, own=own: own.clone()) for key, own in stacked.items()}

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise NotJointError(f"it uses {self.__dict__.get('name', 'a metric')}.{name}")


def _alike(metrics: Sequence[torchmetrics.Metric]) -> bool:
    """Whether metrics have the same class, options, buffers and number of updates, and no metrics in them."""
    kinds = {(type(metric), metric._update_count) for metric in metrics}
    if len(kinds) > 1 or any(
        metric._modules or not all(map(is_plain, _options(metric).values())) for metric in metrics
    ):
        return False
    return len(set(map(_signature, metrics))) == 1


def _signature(metric: torchmetrics.Metric) -> Hashable:
    return tuple((key, exact(value)) for key, value in _options(metric).items()), values_of_buffers(metric)


def _options(metric: torchmetrics.Metric) -> dict[str, Any]:
    own = {key: value for key, value in vars(metric).items() if not key.startswith("_") and not callable(value)}
    return {key: value for key, value in own.items() if key not in metric._defaults}
