"""Owners of layers: a layer that a space makes outside of `build` is the same object in every model it builds."""

import weakref
from collections.abc import Callable, Hashable, Iterator
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.modules.batchnorm import _NormBase

_FEW = 1_000  # claims between two searches for those of freed objects


class Shared(NamedTuple):
    """Something with another owner: its place and layer in the model, in words, and its owner."""

    what: str
    owner: Any


class _Claim(NamedTuple):
    owner: Any
    is_alive: Callable[[], bool]


class Owners:
    """The owners of what is trained: parameters, statistics of normalizations, layers in train mode with buffers.

    What is frozen and in eval mode has no owner. Neither has a buffer that several layers share, unless they are
    normalizations: it is treated as a constant. A claim keeps nothing alive, and a new object never has the claim of
    one that was freed before.
    """

    def __init__(self) -> None:
        self._claims: dict[Hashable, _Claim] = {}
        self._limit = _FEW

    def claim(self, model: nn.Module, owner: Hashable) -> Shared | None:
        """Claim for `owner` what training changes in `model`; return something that has another owner, if any."""
        if len(self._claims) > self._limit:
            self._claims = {key: claim for key, claim in list(self._claims.items()) if claim.is_alive()}
            self._limit = max(_FEW, 2 * len(self._claims))
        for name, layer, thing in _changed_by_training(model):
            for key, is_alive in _marks(thing):
                known = self._claims.get(key)
                if known is None or not known.is_alive():
                    self._claims[key] = _Claim(owner, is_alive)
                elif known.owner != owner:
                    return Shared(f"'{name}' ({type(layer).__name__})", known.owner)
        return None


def _changed_by_training(model: nn.Module) -> Iterator[tuple[str, nn.Module, nn.Module | torch.Tensor]]:
    for path, layer in model.named_modules():
        prefix = f"{path}." if path else ""
        for name, parameter in layer._parameters.items():
            if parameter is not None and parameter.requires_grad:
                yield prefix + name, layer, parameter
        for name, buffer in layer._buffers.items() if layer.training else ():
            if buffer is not None:
                yield prefix + name, layer, buffer if isinstance(layer, _NormBase) else layer


def _marks(thing: nn.Module | torch.Tensor) -> Iterator[tuple[Hashable, Callable[[], bool]]]:
    """Yield the keys that identify it, each with a check that it still exists: of the object, its storage, its memory.

    Moving or merging a model gives a parameter other memory, a view is another object, and an array that is wrapped
    twice has two storages.
    """
    alive = weakref.ref(thing)
    yield ("object", id(thing)), lambda: alive() is not None
    if isinstance(thing, nn.Module) or thing.layout is not torch.strided or nn.parameter.is_lazy(thing):
        return
    storage = thing.untyped_storage()
    weak = StorageWeakRef(storage)
    yield ("storage", weak.cdata), lambda: not weak.expired()
    if address := storage.data_ptr():
        yield ("memory", storage.device, address), lambda: not weak.expired()
