"""A CUDA graph's rules on a CPU: a step is recorded once, and every later one has to be the very same operations.

A CUDA graph replays launches: each with the numbers and addresses of the recording. So a step can be captured if its
operations read and write memory that stays where it is, and no number that changes is baked into them. `FakeGraph` runs
a step's Python again, but its operations write to the memory of the recording, and whatever would differ raises.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_flatten, tree_unflatten

from tests.host_reads import HostReads


class NotCapturableError(AssertionError):
    """A step that a CUDA graph can't replay: it reads on the host, or differs from the recorded one."""


@dataclass(frozen=True)
class _Operation:
    func: Callable[..., Any]
    inputs: list[Any]
    outputs: list[Any]


class FakeGraph:
    """Records the operations of a step and replays them.

    Attributes:
        size: the number of recorded operations.
        replays: how often they were replayed.
    """

    def __init__(self) -> None:
        self._operations: list[_Operation] = []
        self.replays = -1

    @property
    def size(self) -> int:
        """The number of recorded operations."""
        return len(self._operations)

    @contextmanager
    def step(self) -> Iterator[None]:
        """Record the operations inside; the next times, replay them.

        Raises:
            NotCapturableError: as its docstring says.
        """
        recording = self.replays < 0
        mode = _Mode(self._operations, recording)
        with HostReads() as reads, mode:
            yield
        if reads.found:
            raise NotCapturableError(f"the host reads: {', '.join(reads.found)}")
        if mode.place != self.size:
            raise NotCapturableError(f"{mode.place} operations instead of {self.size}")
        self.replays += 1


class _Mode(TorchDispatchMode):
    def __init__(self, operations: list[_Operation], recording: bool):
        super().__init__()
        self._operations, self._recording = operations, recording
        self.place = 0

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        inputs, _ = tree_flatten((args, dict(kwargs or {})))
        result = func(*args, **kwargs or {})
        outputs, form = tree_flatten(result)
        if self._recording:
            # copies of the tensors' descriptions, which keep the memory
            self._operations.append(_Operation(func, [_kept(i) for i in inputs], [_kept(o) for o in outputs]))
            self.place += 1
            return result
        if self.place == len(self._operations):
            raise NotCapturableError(f"one more operation: {func}")
        recorded = self._operations[self.place]
        _check(recorded, func, inputs)
        self.place += 1
        known = {i.untyped_storage().data_ptr() for i in inputs if isinstance(i, torch.Tensor)}
        placed = [_place(o, then, known) for o, then in zip(outputs, recorded.outputs, strict=True)]
        return tree_unflatten(placed, form)


def _kept(value: Any) -> Any:
    return value.detach() if isinstance(value, torch.Tensor) else value


def _place(output: Any, then: Any, known: set[int]) -> Any:
    """The output in the recorded one's memory; a view of an input, or an input itself, is there already."""
    if not isinstance(output, torch.Tensor) or output.untyped_storage().data_ptr() in known:
        return output
    then.copy_(output)
    return then.detach()


def _check(recorded: _Operation, func: Any, inputs: list[Any]) -> None:
    if func is not recorded.func or len(inputs) != len(recorded.inputs):
        raise NotCapturableError(f"{func} instead of {recorded.func}")
    for value, then in zip(inputs, recorded.inputs, strict=True):
        if isinstance(value, torch.Tensor) and isinstance(then, torch.Tensor):
            if _address(value) != _address(then):
                raise NotCapturableError(f"{func}: a tensor {tuple(value.shape)} is not where it was")
        elif value != then and value is not then:
            raise NotCapturableError(f"{func}: {value} instead of {then}")


def _address(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype


@contextmanager
def outside() -> Iterator[None]:
    """Within this, operations belong to no graph."""
    with _disable_current_modes():
        yield
