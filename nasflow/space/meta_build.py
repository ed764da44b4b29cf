"""Build models without values, fast."""

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
    """Build on torch's `meta` device within this block, where tensors have shapes but no memory.

    Filling a tensor there changes nothing, yet takes torch longer than everything else in a layer's constructor, so it
    is skipped.
    """
    with torch.device("meta"), _Unfilled():
        yield


@contextmanager
def for_real() -> Iterator[None]:
    """Build with values within this block, and restore the state of torch's CPU generator after it."""
    with torch.random.fork_rng(devices=[]):
        yield


def is_of_meta(error: BaseException) -> bool:
    """Whether an error, or one in its chain, is torch's error about a tensor on `meta`."""
    seen: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in seen:
        if isinstance(cause, RuntimeError | TypeError) and "meta" in str(cause).lower():
            return True
        seen.append(cause)
        cause = cause.__cause__ or cause.__context__
    return False


class _Unfilled(TorchFunctionMode):
    """A mode that returns a meta tensor unchanged instead of filling it."""

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
