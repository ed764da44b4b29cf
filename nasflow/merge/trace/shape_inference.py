"""Shapes of results: nothing is computed, and each distinct operation is asked about once.

Operations run on the meta device; one that makes tensors of its own elsewhere runs on torch's fake tensors, whose
import alone takes a second or two and so is put off.
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

from nasflow.merge.trace.signature import untouched

_REMEMBERED = 20_000
_known: "OrderedDict[Hashable, Any]" = OrderedDict()


class NotInferableError(Exception):
    """An operation can't be run without data."""


@dataclass(frozen=True)
class Spec:
    """A tensor without its values, at two batch sizes, so that what depends on the batch size can be told apart.

    Attributes:
        shape: at the batch size of the training batches.
        other: at that size plus one.
        order: the dimensions by the strides that the tensor has where nothing is merged, the largest first; empty if
            that is their own order. Random numbers are drawn in the order of memory.
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
        """Of an input whose first dimension is the batch."""
        shape = tuple(x.shape)
        return cls(shape, (shape[0] + 1, *shape[1:]), x.dtype, _order(x))

    @classmethod
    def constant(cls, x: torch.Tensor) -> "Spec":
        """Of a tensor that no batch changes."""
        return cls(tuple(x.shape), tuple(x.shape), x.dtype)

    def is_like(self, other: Any) -> bool:
        """Whether the other is of this shape and type, in whatever order of memory."""
        same = isinstance(other, Spec) and (self.shape, self.other) == (other.shape, other.other)
        return same and self.dtype == other.dtype

    @property
    def numbers(self) -> int:
        """How many numbers it holds."""
        return torch.Size(self.shape).numel()

    @property
    def places(self) -> tuple[int, ...]:
        """Where in `order` each dimension is."""
        return tuple(self.order.index(dim) for dim in range(len(self.order)))

    def arranged(self, x: torch.Tensor) -> torch.Tensor:
        """`x`, dense, its elements in the order that they have where nothing is merged."""
        return x.permute(self.order).contiguous().permute(self.places) if self.order else x.contiguous()


@dataclass(frozen=True, slots=True)
class Scalar:
    """A plain number (or a tuple of some) that follows from shapes, at the two batch sizes."""

    value: Any
    other: Any


def infer(key: Hashable, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The spec of `target(*args, **kwargs)`; nodes among the arguments stand for their specs.

    Args:
        key: calls of equal keys have equal results.
        target: a module, a function, or the name of a tensor's method.

    Raises:
        NotInferableError: the call fails on fake tensors.
    """
    if key in _known:
        _known.move_to_end(key)
        return _known[key]
    try:
        results = _results(target, args, kwargs)
    except (Exception, SystemExit) as error:  # whatever a user's forward raises on tensors without data
        name = type(target).__name__ if isinstance(target, nn.Module) else target
        raise NotInferableError(f"{name} can't be run without data: {type(error).__name__}: {error}") from error
    _known[key] = spec = _spec(*results)
    if len(_known) > _REMEMBERED:
        _known.popitem(last=False)
    return spec


def _results(target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """At both batch sizes."""

    def results() -> list[Any]:
        with untouched(target) if isinstance(target, nn.Module) else nullcontext():
            return [_call(target, _fake(args, size), _fake(kwargs, size)) for size in ("shape", "other")]

    with torch.no_grad():
        try:
            with torch.device("meta"):
                return results()
        except (Exception, SystemExit):  # whatever it is, the fake tensors will say it again
            from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: PLC0415

            try:
                with FakeTensorMode():
                    return results()
            except (Exception, SystemExit):
                if not isinstance(target, nn.Module):
                    raise
                return [_rehearse(target, args, kwargs, size) for size in ("shape", "other")]


def _rehearse(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], size: str) -> Any:
    """What a copy of a module gives for zeros: the last resort for one that looks at values."""
    tensors = [*module.parameters(), *module.buffers()]
    with torch.device(tensors[0].device if tensors else "cpu"):
        return copy.deepcopy(module)(*_fake(args, size), **_fake(kwargs, size))


def _call(target: Any, args: Any, kwargs: Any) -> Any:
    if isinstance(target, nn.Module):
        # Each place once, by hand: told to tie, torch would put a fake in place of a tensor in a module of two names.
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
    raise NotInferableError(f"a {type(result).__name__} is no value a graph can hold")


def _order(x: torch.Tensor) -> tuple[int, ...]:
    if x.is_contiguous():
        return ()
    return tuple(sorted(range(x.ndim), key=lambda dim: (-x.stride()[dim], dim)))
