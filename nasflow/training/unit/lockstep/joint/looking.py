"""Steps that look at the values of a batch while they are recorded, which would be part of the recording."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

_LOOKS = {
    *(torch.Tensor.tolist, torch.Tensor.numpy, torch.Tensor.__array__, torch.Tensor.__repr__, torch.Tensor.__format__),
    *(torch.Tensor.data_ptr, torch.Tensor.untyped_storage, torch.Tensor.storage, torch.Tensor.__dlpack__),
}


class NotRecordableError(Exception):
    """Run again as recorded, a step might compute something else."""


@contextmanager
def refusing_to_look() -> Iterator[None]:
    """Raise NotRecordableError where a value is read, or sizes depend on values, as those of `x[x > 0]` do.

    `make_fx` refuses the other ways to look, such as `.item()`.
    """
    with _Functions(), _Operations():  # type: ignore[no-untyped-call]
        yield


class _Functions(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _LOOKS:
            raise NotRecordableError(f"it looks at values by Tensor.{func.__name__}")
        return func(*args, **(kwargs or {}))


class _Operations(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.Tag.dynamic_output_shape in func.tags and not _is_by_numbers(func, args):
            raise NotRecordableError(f"a size depends on values by {func}")
        return func(*args, **(kwargs or {}))


def _is_by_numbers(func: Any, args: Any) -> bool:
    """Whether it takes entries by their numbers, which are as many as there are numbers."""
    masks = (torch.bool, torch.uint8)
    return func is torch.ops.aten.index.Tensor and all(i is None or i.dtype not in masks for i in args[1])
