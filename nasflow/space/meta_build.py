"""Build models without their numbers, fast."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import init
from torch.overrides import TorchFunctionMode

_FILLS = frozenset(
    {
        *(init.uniform_, init.normal_, init.constant_, init.kaiming_uniform_, init.kaiming_normal_),
        *(Tensor.uniform_, Tensor.normal_, Tensor.fill_, Tensor.zero_),
    }
)


@contextmanager
def on_meta() -> Iterator[None]:
    """What is built inside lies on torch's `meta` device, where tensors have shapes but no memory.

    Filling a tensor there changes nothing, yet takes torch longer than all else that a layer does when it is made; so
    it is left out.
    """
    with torch.device("meta"), _Unfilled():
        yield


@contextmanager
def for_real() -> Iterator[None]:
    """What is built inside has its numbers, and torch's generator on the CPU stands where it stood before."""
    with torch.random.fork_rng(devices=[]):
        yield


def is_of_meta(error: BaseException) -> bool:
    """Whether an error, or one that it was raised for, is torch's about a tensor on `meta`."""
    seen: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in seen:
        if isinstance(cause, RuntimeError | TypeError) and "meta" in str(cause).lower():
            return True
        seen.append(cause)
        cause = cause.__cause__ or cause.__context__
    return False


class _Unfilled(TorchFunctionMode):
    """Gives a meta tensor that is to be filled back as it is."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func in _FILLS:
            tensor = args[0] if args else kwargs["tensor"]  # `init` passes it by name
            if tensor.is_meta:
                return tensor
        return func(*args, **kwargs)
