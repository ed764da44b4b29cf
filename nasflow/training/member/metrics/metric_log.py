"""Collect what a member logs in an epoch, without the Trainer, in place of `LightningModule.log`."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torchmetrics

from nasflow.errors import TrialError
from nasflow.evaluator.ready_made.own_parts import metric_value
from nasflow.training.member.metrics.own_log import has_own_log, lay_under

_REDUCED: dict[str, Callable[..., torch.Tensor]] = {"sum": torch.add, "min": torch.minimum, "max": torch.maximum}


class Logbook:
    """Collects one member's metrics of one epoch.

    A number logged several times in a part of the epoch becomes its mean, weighted by batch size, summed in float64, or
    what `reduce_fx` says. Of several parts with the same name the last one counts, as in Lightning's callback metrics:
    training, validation, its hooks, the hooks after the epoch. A torchmetrics Metric is computed once at the end of the
    epoch and reset.

    Attributes:
        logged: how often something was logged.
        pending: brings what was logged elsewhere into the book, and resets itself; None if nothing was.
    """

    def __init__(self) -> None:
        self.batch_size = 1
        self.logged = 0
        self.pending: Callable[[], None] | None = None
        self._sums: dict[str, tuple[torch.Tensor | float, int]] = {}
        self._earlier: dict[str, tuple[torch.Tensor | float, int]] = {}  # of the epoch's earlier parts
        self._metrics: dict[str, torchmetrics.Metric] = {}
        self._how: dict[str, str] = {}  # of what is no mean

    def take_from(self, module: Any, *callbacks: Any) -> None:
        """Put this in place of Lightning's `log` and `log_dict`; callbacks log as their module does."""
        if has_own_log(module):
            lay_under(module, self)
        else:
            module.log, module.log_dict = self.log, self.log_dict
        for callback in callbacks:
            callback.log, callback.log_dict = module.log, module.log_dict

    def log(
        self,
        name: str,
        value: Any,
        *args: Any,
        batch_size: int | None = None,
        reduce_fx: str | Callable[..., Any] = "mean",
        **options: Any,
    ) -> None:
        """Log as `LightningModule.log` does; options about steps, progress bars and loggers are ignored.

        Raises:
            TrialError: the value is not one number, or values can't be put together by `reduce_fx`.
        """
        self.settle()
        self.logged += 1
        if not isinstance(value, float) and isinstance(value, torchmetrics.Metric):  # which asks all its subclasses
            self._metrics[name] = value
            return
        weight = batch_size or self.batch_size
        number = _number(name, value)
        total, count = self._sums.get(name, (0.0, 0))
        how = reduce_fx if isinstance(reduce_fx, str) else getattr(reduce_fx, "__name__", "")
        if how in ("mean", "avg"):
            self._sums[name] = (total + number * weight, count + weight)
        elif how in _REDUCED:
            self._sums[name] = (_REDUCED[how](torch.as_tensor(total), torch.as_tensor(number)) if count else number, 1)
            self._how[name] = how
        else:
            raise TrialError(f"self.log('{name}', ..., reduce_fx={reduce_fx!r}): it should be mean, sum, min or max")

    def log_dict(self, values: Mapping[str, Any], *args: Any, **options: Any) -> None:
        """Log as `LightningModule.log_dict` does."""
        for name, value in values.items():
            self.log(name, value, **options)

    def next_part(self) -> None:
        """Begin another part of the epoch."""
        self.settle()
        self._earlier, self._sums = {**self._earlier, **self._sums}, {}

    def settle(self) -> None:
        """Bring in what is pending."""
        if self.pending is not None:
            self.pending()

    def peek(self, name: str) -> tuple[torch.Tensor | float, int]:
        """Return the sum and the weight of a number in the book; zeros if it was not logged."""
        return self._sums.get(name, (0.0, 0))

    def put(self, name: str, total: torch.Tensor, count: int) -> None:
        """Replace the sum and the weight of a number."""
        self._sums[name] = (total, count)

    def sums(self) -> dict[str, list[float | int]]:
        """Return of each number logged so far its weighted sum and the sum of its weights."""
        self.settle()
        return {name: [float(total), count] for name, (total, count) in {**self._earlier, **self._sums}.items()}

    def so_far(self, computed: bool) -> dict[str, float]:
        """Return what was logged so far; with `computed`, each torchmetrics Metric that has seen a batch, too."""
        means = {name: total / count for name, (total, count) in self.sums().items()}
        seen = {name: metric for name, metric in self._metrics.items() if computed and metric.update_count}
        return {**means, **{name: metric_value(name, metric) for name, metric in seen.items()}}

    def how(self) -> dict[str, str]:
        """Return of the numbers that are no means how they are put together: sum, min or max."""
        return dict(self._how)

    def take(self, name: str) -> tuple[float, int]:
        """Return, and forget, the sum and the weight of a number; zeros if it was not logged."""
        self.settle()
        total, count = self._sums.pop(name, (0.0, 0))
        return float(total), count

    def go_on(self, sums: Mapping[str, Sequence[float | int]]) -> None:
        """Continue from the sums of an epoch's earlier batches."""
        self.pending, self._earlier = None, {}
        self._sums = {name: (float(total), int(count)) for name, (total, count) in sums.items()}

    def close_epoch(self) -> dict[str, float]:
        """Return the epoch's metrics by name, and clear the book."""
        values = {name: total / count for name, (total, count) in self.sums().items()}
        for name, metric in self._metrics.items():
            values[name] = metric_value(name, metric)
            metric.reset()
        self._sums, self._earlier = {}, {}
        self._metrics.clear()
        return values


def _number(name: str, value: Any) -> torch.Tensor | float:
    """Return what is logged. Raises TrialError if it is not one number."""
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        return value.detach().double()
    if isinstance(value, torch.Tensor):
        raise TrialError(
            f"self.log('{name}', ...) was given a tensor of the shape {tuple(value.shape)}; log one number, such as "
            "its mean"
        )
    try:
        return float(value)
    except (TypeError, ValueError):
        raise TrialError(
            f"self.log({name!r}, ...) was given {value!r:.80}, which is no number; log a number, or a tensor with one"
        ) from None


def batch_size_of(batch: Any) -> int:
    """Return the length of the first tensor with dimensions in a batch; 1 if there is none.

    Only where mappings, lists, tuples and dataclasses have none, other kinds of objects are iterated over, as
    Lightning does.
    """
    found = _length(_tensors(batch))
    if found is None:
        try:
            found = _length(_tensors(batch, others=True))
        except Exception:  # any: what an object does when it is iterated over may be meant for something else
            found = None
    return 1 if found is None else found


def _length(tensors: Iterator[torch.Tensor]) -> int | None:
    return next((len(tensor) for tensor in tensors if tensor.ndim), None)


def _tensors(batch: Any, others: bool = False) -> Iterator[torch.Tensor]:
    """Yield the tensors in a batch; with `others`, also those that objects of other kinds give."""
    if isinstance(batch, torch.Tensor):
        yield batch
    elif isinstance(batch, Mapping | list | tuple):
        for part in batch.values() if isinstance(batch, Mapping) else batch:
            yield from _tensors(part, others)
    elif dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        for field in dataclasses.fields(batch):
            yield from _tensors(getattr(batch, field.name), others)
    elif others and isinstance(batch, Iterable) and not _is_closed(batch):
        for item in batch:
            yield from _tensors(item)


def _is_closed(thing: Any) -> bool:
    """Whether it can be read only once, or has no tensors."""
    return isinstance(thing, Iterator | str | bytes) or hasattr(thing, "__array__")
