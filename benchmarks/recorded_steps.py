"""Would steps that are recorded from autograd be as fast as the tape? `python -m benchmarks.recorded_steps`.

A merged step is computed by the tape with native kernels, as in training; by the tape with torch alone; by autograd;
and by replaying the operations of one such step of autograd's, its optimizer's included, into the same memory, with
`out=` where they have it. All in turn, on one core with one thread; medians, and as many times the tape's.
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from benchmarks.merging.contestants import run_job
from benchmarks.merging.group import Group
from benchmarks.merging.pinning import pin
from benchmarks.merging.workloads import w1_mlps, w2_cells, w4_frozen_trunk
from nasflow.native import library
from nasflow.training.unit.fused import FusedUnit

GROUPS: dict[str, Callable[[], Group]] = {
    "W1a, 32 members": lambda: w1_mlps.make_group("a", 32, 1, 0),
    "W2, 16 members": lambda: w2_cells.make_group(8, 16, 1, 0),
    "W4, 48 members": lambda: w4_frozen_trunk.make_group(48, 1, 0),
}
_STEP = 3  # the batch of which steps are measured: memory is laid out by then
Batch = tuple[torch.Tensor, torch.Tensor]


class _ReachedError(BaseException):
    """Ends a job at the step that is to be measured."""


def main() -> int:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=200)
    options = parser.parse_args()
    pin("benchmarks.recorded_steps")
    torch.set_num_threads(1)
    table = Table("steps of", "tape, ms", "tape by torch", "autograd", "recorded", "operations", "without out=")
    for name, make in GROUPS.items():
        table.add_row(name, *measure(make(), options.repeats))
    Console().print(table)
    return 0


def measure(group: Group, repeats: int) -> list[str]:
    """Return the table's columns for the largest unit of a group."""
    unit, batch = reach(group)
    with _ByTorch():
        plain, _ = reach(group)
        record = Recorded(lambda: by_autograd(plain, batch))
    contestants: list[Callable[[], object]] = [
        lambda: unit.train_batch(batch, _STEP),
        _by_torch(lambda: plain.train_batch(batch, _STEP)),
        _by_torch(lambda: by_autograd(plain, batch)),
        _by_torch(record.replay),
    ]
    times: list[list[float]] = [[] for _ in contestants]
    for _ in range(repeats):
        for run, found in zip(contestants, times, strict=True):
            began = time.perf_counter()
            run()
            found.append(time.perf_counter() - began)
    tape, *others = (statistics.median(found[len(found) // 10 :]) for found in times)
    counts = [str(len(record.calls)), str(record.copied)]
    return [f"{tape * 1000:.2f}", *(f"{other / tape:.2f}x" for other in others), *counts]


def reach(group: Group) -> tuple[FusedUnit, Batch]:
    """Run a job of the group up to a step, and return its largest unit and the batch."""
    found: list[tuple[FusedUnit, Batch]] = []
    train_batch = FusedUnit.train_batch

    def until(unit: FusedUnit, batch: Batch, index: int) -> None:
        if index == _STEP:
            found.append((unit, batch))
        elif index > _STEP:
            raise _ReachedError
        train_batch(unit, batch, index)

    FusedUnit.train_batch = until  # type: ignore[method-assign]
    try:
        with tempfile.TemporaryDirectory() as folder:
            spec = group.job("job")
            merge = spec.merge.model_copy(update={"fuse": "always"})
            run_job(spec.model_copy(update={"merge": merge}), Path(folder))
    except _ReachedError:
        pass
    finally:
        FusedUnit.train_batch = train_batch  # type: ignore[method-assign]
    return max(found, key=lambda each: len(each[0].members))


def by_autograd(unit: FusedUnit, batch: Batch) -> None:
    """Make a step without the tape."""
    x, target = batch
    unit._optimizer.zero_grad()
    unit.model.backpropagate(x, lambda outputs: unit._group.losses_and_gradients(outputs, target), taped=False)
    unit._optimizer.step()


class Recorded:
    """The operations of one run of a function.

    Attributes:
        calls: what a replay calls: no views, and nothing that only makes memory.
        copied: for how many of them the result has to be copied, because they can't write to given memory.
    """

    def __init__(self, run: Callable[[], None]):
        self.calls: list[tuple[Callable[..., Any], Sequence[Any], Mapping[str, Any]]] = []
        self.copied = 0
        with _Recorder(self):
            run()

    def replay(self) -> None:
        """Run the operations again."""
        with torch.no_grad():
            for function, args, kwargs in self.calls:
                function(*args, **kwargs)

    def add(self, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> None:
        """Record an operation and its result."""
        places = {t.untyped_storage().data_ptr() for t in tree_flatten((args, kwargs))[0] if torch.is_tensor(t)}
        outputs = [t for t in tree_flatten(result)[0] if torch.is_tensor(t)]
        if function._schema.is_mutable:
            self.calls.append((function, args, kwargs))
        elif function in _MAKE_MEMORY or any(t.untyped_storage().data_ptr() in places for t in outputs):
            return
        elif len(outputs) == 1 and (writing := _out_form(function)) is not None:
            self.calls.append((writing, args, {**kwargs, "out": outputs[0]}))
        else:
            self.copied += 1
            self.calls.append((_copying(function, outputs), args, kwargs))


class _Recorder(TorchDispatchMode):
    def __init__(self, record: Recorded):
        super().__init__()
        self._record = record

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **kwargs or {})
        self._record.add(func, args, dict(kwargs or {}), result)
        return result


_MAKE_MEMORY = {torch.ops.aten.empty.memory_format, torch.ops.aten.empty_like.default, torch.ops.aten.detach.default}


def _out_form(function: Any) -> Callable[..., Any] | None:
    """The same operation with an argument `out`, if there is one."""
    given = [(argument.name, str(argument.type)) for argument in function._schema.arguments]
    for name in function.overloadpacket.overloads():
        form = getattr(function.overloadpacket, name)
        arguments = form._schema.arguments
        own = [(argument.name, str(argument.type)) for argument in arguments if not argument.is_out]
        if own == given and [argument.name for argument in arguments if argument.is_out] == ["out"]:
            return form  # type: ignore[no-any-return]
    return None


def _copying(function: Callable[..., Any], outputs: list[torch.Tensor]) -> Callable[..., None]:
    def run(*args: Any, **kwargs: Any) -> None:
        found = [t for t in tree_flatten(function(*args, **kwargs))[0] if torch.is_tensor(t)]
        for output, value in zip(outputs, found, strict=True):
            output.copy_(value)

    return run


class _ByTorch:
    """Within this there are no native kernels."""

    def __enter__(self) -> None:
        self._library = library._library
        library._library = lambda: None  # type: ignore[assignment]

    def __exit__(self, *_: object) -> None:
        library._library = self._library


def _by_torch(run: Callable[[], object]) -> Callable[[], object]:
    def wrapped() -> None:
        with _ByTorch():
            run()

    return wrapped


if __name__ == "__main__":
    sys.exit(main())
