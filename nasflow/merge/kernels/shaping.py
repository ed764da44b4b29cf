"""Operations on shapes, and reductions, along a member's own dimensions, which are shifted by one in a stack."""

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
from torch import nn

from nasflow.merge.kernels.base import Kernel
from nasflow.merge.tape.tape import Tape
from nasflow.merge.tape.tape_values import Spot
from nasflow.merge.trace.node import Node, map_nodes
from nasflow.merge.trace.op_properties import function_name
from nasflow.merge.trace.shape_inference import Scalar, Spec
from nasflow.merge.trace.signature import is_hooked
from nasflow.merge.values.layout import Layout
from nasflow.merge.values.parameter_stacks import Bench

_SHAPED = frozenset(
    [
        "flatten",
        "view",
        "reshape",
        "permute",
        "transpose",
        "unsqueeze",
        "mean",
        "sum",
        "amax",
        "amin",
        "softmax",
        "log_softmax",
    ]
)
_LAYERS = (nn.Flatten, nn.Softmax, nn.LogSoftmax)
_WITH_DIMS = frozenset(["mean", "sum", "amax", "amin", "softmax", "log_softmax"])
_IN_ORDER = frozenset(["flatten", "view", "reshape", "unsqueeze"])  # elements keep their order


class Shaping(Kernel):
    """Runs flatten, view, reshape, permute, transpose, unsqueeze, mean, sum, amax, amin, softmax and log_softmax."""

    label = "reshape"

    def __init__(self, nodes: Sequence[Node], bench: Bench):
        super().__init__(nodes, bench)
        self._name, self._args, self._kwargs = _call_of(nodes[0])

    @classmethod
    def fits(cls, node: Node) -> bool:
        if not node.inputs or not isinstance(node.inputs[0].spec, Spec):
            return False
        if node.module is not None:
            plain = type(node.module) in _LAYERS and not is_hooked(node.module)
            return plain and getattr(node.module, "dim", 0) is not None
        others, name, (_, rest, kwargs) = node.inputs[1:], function_name(node), _call_of(node)
        return (
            name in _SHAPED
            and node.args[:1] == node.inputs[:1]
            and all(isinstance(source.spec, Scalar) for source in others)
            and isinstance(node.spec, Spec)
            and not set(kwargs) - {"dim", "start_dim", "end_dim", "keepdim"}
            and not (name in _WITH_DIMS and _dims(node) is None)
            and not (name in ("softmax", "log_softmax") and len(rest) > 1)
        )

    @classmethod
    def layouts(cls, node: Node, given: Sequence[Layout]) -> tuple[list[Layout], Layout]:
        rest = [Layout.SCALAR] * (len(given) - 1)
        if given[0] is Layout.CHANNELS and _is_spatial_mean(node):
            return [Layout.CHANNELS, *rest], Layout.CHANNELS
        return [Layout.STACK, *rest], Layout.STACK

    def __call__(self, inputs: list[Any], training: bool) -> torch.Tensor:
        node = self.nodes[0]
        values = dict(zip(node.inputs, inputs, strict=True))
        args, kwargs = (map_nodes(tree, values.__getitem__) for tree in (self._args, self._kwargs))
        x: torch.Tensor = inputs[0]
        first = x.ndim - len(node.inputs[0].spec.shape)  # where a member's own dimensions begin
        return _SHAPES[self._name](x, first, *args, **kwargs)

    @property
    def is_tapeable(self) -> bool:
        """Whether it only changes the shape and keeps the elements in order."""
        return self._name in _IN_ORDER

    def record(self, tape: Tape, inputs: list[list[Spot]], training: bool, cuts: Sequence[int]) -> list[Spot]:
        """See `Tapeable`."""
        x = tape.join(inputs[0])
        y = Spot(x.data, self.rows, x.layout, needs_grad=x.needs_grad)
        tape.do(lambda: setattr(y, "data", self([x.data], training)))
        tape.on_backward([y], lambda: tape.contribute(x, lambda: y.grad.reshape(x.data.shape)))
        return [y]


class Concatenation(Kernel):
    """`torch.cat` of a member's tensors."""

    label = "concatenation"

    @classmethod
    def fits(cls, node: Node) -> bool:
        if function_name(node) not in ("cat", "concat") or set(node.kwargs) - {"dim", "axis"}:
            return False
        tensors = node.args[0] if node.inputs and node.args else None
        if not isinstance(tensors, tuple | list):
            return False
        return isinstance(_cat_dim(node), int) and all(isinstance(item, Node) for item in tensors)

    @classmethod
    def batch_key(cls, node: Node) -> Hashable:
        return (node.signature, tuple(node.inputs.index(source) for source in node.inputs))

    @classmethod
    def layouts(cls, node: Node, given: Sequence[Layout]) -> tuple[list[Layout], Layout]:
        channels = Layout.CHANNELS in given and _cat_dim(node) % len(node.spec.shape) == 1
        layout = Layout.CHANNELS if channels else Layout.STACK
        return [layout] * len(given), layout

    def __call__(self, inputs: list[Any], training: bool) -> torch.Tensor:
        node = self.nodes[0]
        dim = _cat_dim(node) % len(node.spec.shape)
        if inputs[0].ndim > len(node.spec.shape):
            return torch.cat(inputs, dim + 1)
        apart = [x.unflatten(1, (self.rows, -1)) for x in inputs]
        return torch.cat(apart, 2).flatten(1, 2)


class ShapeOf(Kernel):
    """Queries of a tensor's shape, and what a model computes from the results: one plain value for all rows."""

    label = "shape"

    @classmethod
    def fits(cls, node: Node) -> bool:
        if node.op not in ("function", "method") or not isinstance(node.spec, Scalar):
            return False
        tensors = [source for source in node.inputs if isinstance(source.spec, Spec)]
        asks = function_name(node) in ("size", "dim", "getattr", "numel", "shape", "ndim")
        return not tensors or (asks and len(node.inputs) == 1)

    @classmethod
    def layouts(cls, node: Node, given: Sequence[Layout]) -> tuple[list[Layout], Layout]:
        return list(given), Layout.SCALAR

    def __call__(self, inputs: list[Any], training: bool) -> Any:
        node = self.nodes[0]
        values = {source: self._member_view(value, source) for source, value in zip(node.inputs, inputs, strict=True)}
        args, kwargs = (map_nodes(tree, values.__getitem__) for tree in (node.args, node.kwargs))
        result = (
            getattr(args[0], node.target)(*args[1:], **kwargs) if node.op == "method" else node.target(*args, **kwargs)
        )
        return tuple(result) if isinstance(result, torch.Size) else result

    def _member_view(self, value: Any, source: Node) -> Any:
        """Return a tensor of one member's shape; its values are never read."""
        if not isinstance(source.spec, Spec):
            return value
        if isinstance(value, list):
            return value[0]
        if value.ndim > len(source.spec.shape):
            return value[0]
        # rows are side by side in the channels; a tensor that all share has one member's shape, of today's batch
        if self.rows > 1 and value.ndim > 1 and value.shape[1] == self.rows * source.spec.shape[1]:
            value = value.narrow(1, 0, source.spec.shape[1])
        return value


def _call_of(node: Node) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
    """Return the operation's name, and its arguments after the tensor."""
    match node.module:
        case nn.Flatten(start_dim=start, end_dim=end):
            return "flatten", (start, end), {}
        case nn.Softmax(dim=dim):
            return "softmax", (dim,), {}
        case nn.LogSoftmax(dim=dim):
            return "log_softmax", (dim,), {}
    # what torch.nn.functional passes on besides, for a warning, and for a dtype that was not asked for
    ignored = ("_stacklevel", *(name for name in ("dtype",) if node.kwargs.get(name) is None))
    kwargs = {name: value for name, value in node.kwargs.items() if name not in ignored}
    return function_name(node) or "", node.args[1:], kwargs


def _dims(node: Node) -> Any:
    return node.args[1] if len(node.args) > 1 else node.kwargs.get("dim")


def _cat_dim(node: Node) -> Any:
    return node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", node.kwargs.get("axis", 0))


def _is_spatial_mean(node: Node) -> bool:
    if function_name(node) not in ("mean", "sum", "amax", "amin"):
        return False
    dims, ndim = _dims(node), len(node.inputs[0].spec.shape)
    listed = dims if isinstance(dims, tuple | list) else (dims,)
    return all(isinstance(dim, int) and dim % ndim > 1 for dim in listed)


def _later(dim: Any, first: int) -> Any:
    """Return a member's dimension as one of the stack; those counted from the end are the same."""
    if isinstance(dim, tuple | list):
        return tuple(_later(item, first) for item in dim)
    return dim + first if dim >= 0 else dim


def _sizes(args: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(args[0]) if len(args) == 1 and isinstance(args[0], tuple | list) else args


def _reshaped(x: torch.Tensor, first: int, *sizes: Any) -> torch.Tensor:
    return x.reshape(*x.shape[:first], *_sizes(sizes))


def _flattened(x: torch.Tensor, first: int, start_dim: int = 0, end_dim: int = -1) -> torch.Tensor:
    return x.flatten(_later(start_dim, first), _later(end_dim, first))


def _permuted(x: torch.Tensor, first: int, *dims: Any) -> torch.Tensor:
    own = _sizes(dims)
    return x.permute(*range(first), *(dim % len(own) + first for dim in own))


def _reducing(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def reduce(x: torch.Tensor, first: int, dim: Any, keepdim: bool = False) -> torch.Tensor:
        return function(x, _later(dim, first), keepdim)

    return reduce


_SHAPES: dict[str, Callable[..., torch.Tensor]] = {
    "flatten": _flattened,
    "view": _reshaped,
    "reshape": _reshaped,
    "permute": _permuted,
    "transpose": lambda x, first, a, b: x.transpose(_later(a, first), _later(b, first)),
    "unsqueeze": lambda x, first, dim: x.unsqueeze(_later(dim, first)),
    "softmax": lambda x, first, dim: torch.softmax(x, _later(dim, first)),
    "log_softmax": lambda x, first, dim: torch.log_softmax(x, _later(dim, first)),
    "mean": _reducing(torch.mean),
    "sum": _reducing(torch.sum),
    "amax": _reducing(torch.amax),
    "amin": _reducing(torch.amin),
}
