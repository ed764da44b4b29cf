"""A CUDA graph on a CPU: operations are recorded once and then replayed, without the Python that launched them.

As in a CUDA graph, recording executes nothing, and a replay makes the same operations on the same memory with the same
numbers, so whatever else would have changed from step to step, on the host or where values are stored, is wrong then.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from tests.host_reads import HostReads


class NotCapturableError(RuntimeError):
    """Operations that a CUDA graph can't replay, because the host reads a result."""


@dataclass(frozen=True)
class _Operation:
    func: Callable[..., Any]
    args: Any
    kwargs: Any
    outputs: list[torch.Tensor]
    """In memory that it has allocated."""


class FakeRecorder:
    """A recorder (nasflow/training/unit/step_graph.py) of operations on a CPU.

    Attributes:
        operations: of each recording, how many there are.
        replays: of all recordings.
    """

    def __init__(self) -> None:
        self.operations: list[int] = []
        self.replays = 0

    @contextmanager
    def warming(self) -> Iterator[None]:
        """Do nothing: a CPU has one stream."""
        yield

    def capture(self, step: Callable[[], torch.Tensor]) -> tuple[torch.Tensor, Callable[[], None]]:
        """Record the operations of a step, which has no effect. Return its result, and what makes the operations again.

        Raises:
            NotCapturableError: as its docstring says.
        """
        recording = _Recording()
        with recording.without_effect(), HostReads() as reads, recording:
            result = step()
        if reads.found:
            raise NotCapturableError(f"the host reads: {', '.join(reads.found)}")
        self.operations.append(len(recording.operations))

        def replay() -> None:
            self.replays += 1
            with torch.no_grad():
                for operation in recording.operations:
                    _make_again(operation)

        return result, replay


class _Recording(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.operations: list[_Operation] = []
        self._known: dict[int, torch.UntypedStorage] = {}  # all that was seen, by address, so that no address is reused
        self._before: list[tuple[torch.UntypedStorage, torch.UntypedStorage]] = []  # and what it was

    @contextmanager
    def without_effect(self) -> Iterator[None]:
        """Restore all memory afterwards that was there before."""
        yield
        for storage, values in self._before:
            storage.copy_(values)

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        for tensor in _tensors((args, dict(kwargs or {}))):
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in self._known:
                self._known[storage.data_ptr()] = storage
                self._before.append((storage, storage.clone()))
        kept = tree_map(_kept, (tuple(args), dict(kwargs or {})))
        result = func(*args, **kwargs or {})
        fresh = [t for t in _tensors(result) if t.untyped_storage().data_ptr() not in self._known]
        self._known.update({tensor.untyped_storage().data_ptr(): tensor.untyped_storage() for tensor in fresh})
        is_view = not fresh and not any(
            argument.alias_info and argument.alias_info.is_write for argument in func._schema.arguments
        )
        if not is_view:
            self.operations.append(_Operation(func, *kept, [_kept(tensor) for tensor in fresh]))
        return result


def _make_again(operation: _Operation) -> None:
    result = _tensors(operation.func(*operation.args, **operation.kwargs))
    written = {tensor.untyped_storage().data_ptr() for tensor in _tensors((operation.args, operation.kwargs))}
    made = [tensor for tensor in result if tensor.untyped_storage().data_ptr() not in written]
    for then, now in zip(operation.outputs, made, strict=True):
        then.copy_(now)


def _kept(value: Any) -> Any:
    """A tensor's description as it is now; it keeps the memory."""
    return value.detach() if isinstance(value, torch.Tensor) else value


def _tensors(values: Any) -> list[torch.Tensor]:
    return [value for value in tree_leaves(values) if isinstance(value, torch.Tensor)]
