"""Infers shapes of results: nothing is computed, and each distinct operation is tried once.

Operations run on the meta device. One that creates tensors on another device runs on torch's fake tensors, which are
imported only then, because the import takes a second or two.
"""

import copy
from collections import OrderedDict
from collections.abc import Callable, Hashable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import nn
from torch.func import functional_call

from nasflow.clean_text import error_message
from nasflow.merge.trace.signature import untouched

_REMEMBERED = 20_000
_known: "OrderedDict[Hashable, Any]" = OrderedDict()


class NotInferableError(Exception):
    """An operation can't be run without data."""


@dataclass(frozen=True)
class Spec:
    """A tensor without its values, at two batch sizes, which show what depends on the batch size.

    Attributes:
        shape: at the batch size of the training batches.
        other: at that size plus one.
        order: the dimensions by decreasing stride in the model that is not merged; empty if that is their own order.
            Random numbers are drawn in the order of memory.
    """

    shape: tuple[int, ...]
    other: tuple[int, ...]
    dtype: torch.dtype
    order: tuple[int, ...] = ()

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash((self.shape, self.other, self.dtype, self.order))

    @classmethod
    def batch(cls, x: torch.Tensor) -> "Spec":
        """Return the spec of an input with the batch as its first dimension."""
        shape = tuple(x.shape)
        return cls(shape, (shape[0] + 1, *shape[1:]), x.dtype, _order(x))

    @classmethod
    def constant(cls, x: torch.Tensor) -> "Spec":
        """Return the spec of a tensor that does not depend on the batch."""
        return cls(tuple(x.shape), tuple(x.shape), x.dtype)

    def is_like(self, other: Any) -> bool:
        """Whether `other` has the same shape and type, in any memory order."""
        same = isinstance(other, Spec) and (self.shape, self.other) == (other.shape, other.other)
        return same and self.dtype == other.dtype

    @property
    def numbers(self) -> int:
        """The number of elements."""
        return torch.Size(self.shape).numel()

    @property
    def places(self) -> tuple[int, ...]:
        """The position of each dimension in `order`."""
        return tuple(self.order.index(dim) for dim in range(len(self.order)))

    def arranged(self, x: torch.Tensor) -> torch.Tensor:
        """Return `x`, dense, with its elements in the memory order that they have where nothing is merged."""
        return x.permute(self.order).contiguous().permute(self.places) if self.order else x.contiguous()


@dataclass(frozen=True, slots=True)
class Scalar:
    """A plain number (or a tuple of some) derived from shapes, at the two batch sizes."""

    value: Any
    other: Any


def infer(key: Hashable, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the spec of `target(*args, **kwargs)`; nodes among the arguments represent their specs.

    Args:
        key: calls with equal keys have equal results.
        target: a module, a function, or the name of a tensor's method.

    Raises:
        NotInferableError: the call fails without data, or its result is nothing that a graph can hold.
    """
    if key in _known:
        _known.move_to_end(key)
        return _known[key]
    try:
        results = _results(target, args, kwargs)
    except (Exception, SystemExit) as error:  # a user's forward may raise anything on tensors without data
        name = type(target).__name__ if isinstance(target, nn.Module) else target
        raise NotInferableError(f"{name} can't be run without data: {error_message(error)}") from error
    _known[key] = spec = _spec(*results)
    if len(_known) > _REMEMBERED:
        _known.popitem(last=False)
    return spec


def _results(target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """Return the results at both batch sizes."""

    def results() -> list[Any]:
        with untouched(target) if isinstance(target, nn.Module) else nullcontext():
            return [_call(target, _fake(args, size), _fake(kwargs, size)) for size in ("shape", "other")]

    with torch.no_grad():
        try:
            with torch.device("meta"):
                return results()
        except (Exception, SystemExit):  # whatever it is, fake tensors will raise it again
            from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: PLC0415

            try:
                with FakeTensorMode():
                    return results()
            except (Exception, SystemExit):
                if not isinstance(target, nn.Module):
                    raise
                return [_rehearse(target, args, kwargs, size) for size in ("shape", "other")]


def _rehearse(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], size: str) -> Any:
    """Run a copy of a module on zeros: the last resort for a module that looks at values."""
    tensors = [*module.parameters(), *module.buffers()]
    with torch.device(tensors[0].device if tensors else "cpu"):
        return copy.deepcopy(module)(*_fake(args, size), **_fake(kwargs, size))


def _call(target: Any, args: Any, kwargs: Any) -> Any:
    if isinstance(target, nn.Module):
        # Each place once: with `tie_weights`, torch would replace a tensor by a fake in a module with two names.
        fakes = {
            f"{path}.{name}" if path else name: _fake(Spec.constant(tensor), "shape")
            for path, part in target.named_modules()
            for name, tensor in (*part._parameters.items(), *part._buffers.items())
            if tensor is not None
        }
        return functional_call(target, fakes, args, kwargs, tie_weights=False)
    if isinstance(target, str):
        return getattr(args[0], target)(*args[1:], **kwargs)
    call: Callable[..., Any] = target
    return call(*args, **kwargs)


def _fake(tree: Any, which: str) -> Any:
    spec = getattr(tree, "spec", None)
    if spec is not None:
        return _fake(spec, which)
    if isinstance(tree, Spec):
        return tree.arranged(torch.zeros(getattr(tree, which), dtype=tree.dtype))
    if isinstance(tree, Scalar):
        return tree.value if which == "shape" else tree.other
    if isinstance(tree, tuple | list):
        return type(tree)(_fake(item, which) for item in tree)
    if isinstance(tree, dict):
        return {key: _fake(item, which) for key, item in tree.items()}
    if isinstance(tree, slice):
        return slice(_fake(tree.start, which), _fake(tree.stop, which), _fake(tree.step, which))
    return tree


def _spec(result: Any, other: Any) -> Any:
    if isinstance(result, torch.Tensor):
        return Spec(tuple(result.shape), tuple(other.shape), result.dtype, _order(result))
    if isinstance(result, torch.Size | int | float | bool | torch.dtype | torch.device):
        return Scalar(tuple(result) if isinstance(result, torch.Size) else result,
                      tuple(other) if isinstance(other, torch.Size) else other)  # fmt: skip
    if isinstance(result, tuple | list):
        return tuple(_spec(a, b) for a, b in zip(result, other, strict=True))
    if result is None:
        return None
    raise NotInferableError(f"a {type(result).__name__} can't be part of a graph")


def _order(x: torch.Tensor) -> tuple[int, ...]:
    if x.is_contiguous():
        return ()
    return tuple(sorted(range(x.ndim), key=lambda dim: (-x.stride()[dim], dim)))
