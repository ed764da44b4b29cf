"""Proxies for the layers of a LightningModule where its step calls them."""

import copy
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import MethodType
from typing import Any

from greenlet import getcurrent
from pytorch_lightning import LightningModule
from torch import nn

from nasflow.training.unit.lockstep.pausing import PausingStep


class ModelProxy:
    """A layer in all but its calls, which a `PausingStep` answers; outside of one, the layer itself does.

    In a step, the layers that are read from it have proxies too, and its own methods see it in the place of `self` if
    the step opens it.
    """

    def __init__(self, layer: nn.Module):
        object.__setattr__(self, "_proxied", layer)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return the output of the layer."""
        step = getcurrent()
        if isinstance(step, PausingStep):
            return step.call(self._proxied, self, args, kwargs)
        return self._proxied(*args, **kwargs)

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return type(self._proxied)

    def __getattr__(self, name: str) -> Any:
        value, step = getattr(self._proxied, name), getcurrent()
        if type(value) is MethodType and isinstance(step, PausingStep):
            is_own = value.__self__ is self._proxied and not hasattr(nn.Module, name)
            return MethodType(value.__func__, self) if is_own and step.opens(self._proxied) else value
        return _proxy_of(value)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._proxied, name, value._proxied if type(value) is ModelProxy else value)

    def __delattr__(self, name: str) -> None:
        delattr(self._proxied, name)

    def __dir__(self) -> list[str]:
        return dir(self._proxied)

    def __repr__(self) -> str:
        return repr(self._proxied)

    def __len__(self) -> int:
        return len(self._proxied)

    def __iter__(self) -> Iterator[Any]:
        return map(_proxy_of, self._proxied)

    def __contains__(self, key: Any) -> bool:
        return key in self._proxied

    def __getitem__(self, key: Any) -> Any:
        return _proxy_of(self._proxied[key])

    def __eq__(self, other: object) -> bool:
        return bool(self._proxied is other or (type(other) is ModelProxy and self._proxied is other._proxied))

    def __hash__(self) -> int:
        return hash(self._proxied)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return copy.deepcopy(self._proxied, memo)

    def __copy__(self) -> Any:
        return copy.copy(self._proxied)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self._proxied.__reduce_ex__(protocol)


@contextmanager
def proxied(module: LightningModule, names: Iterable[str]) -> Iterator[None]:
    """Put proxies before children of a module. Parameters, state dict and names stay: they are in `__dict__` only."""
    put = {name: ModelProxy(child) for name in names if isinstance(child := module._modules.get(name), nn.Module)}
    module.__dict__.update(put)
    try:
        yield
    finally:
        for name in put:
            module.__dict__.pop(name, None)


def _proxy_of(value: Any) -> Any:
    is_layer = issubclass(type(value), nn.Module)  # which a proxy's is not
    return ModelProxy(value) if is_layer and isinstance(getcurrent(), PausingStep) else value
