"""Counts what the host reads from tensors: on a GPU it would have to wait there for all that was launched before."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

_OPERATIONS = frozenset(
    ["_local_scalar_dense", "item", "is_nonzero", "nonzero", "argwhere", "equal", "masked_select", "repeat_interleave"]
) | {"unique_consecutive", "unique_dim", "_unique2"}
_INDEXING = frozenset(("index", "index_put", "index_put_", "_unsafe_index", "_index_put_impl_"))
_CALLS = frozenset(("tolist", "item", "numpy", "cpu", "__bool__", "__int__", "__float__", "__index__", "__array__"))


class HostReads(TorchDispatchMode):
    """Within this, reads are collected: operations whose result the host needs, and calls such as `tolist`.

    Attributes:
        found: the names of the operations, in order.
    """

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self._calls = _Calls(self.found)
        self._stack = ExitStack()

    def __enter__(self) -> "HostReads":
        self._stack.enter_context(self._calls)  # which a CPU does without an operation
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._stack.close()

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run an operation."""
        name = func.overloadpacket.__name__
        if name in _OPERATIONS or (name in _INDEXING and any(map(_is_mask, args[1]))):
            self.found.append(name)
        return func(*args, **kwargs or {})


class _Calls(TorchFunctionMode):
    def __init__(self, found: list[str]):
        self._found = found

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if getattr(func, "__name__", "") in _CALLS:
            self._found.append(func.__name__)
        return func(*args, **kwargs or {})


def _is_mask(index: torch.Tensor | None) -> bool:
    """Whether indexing has to count how many elements are chosen."""
    return index is not None and index.dtype in (torch.bool, torch.uint8)
