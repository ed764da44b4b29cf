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
