"""One operation in the graph of a member."""

import inspect
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from types import FunctionType
from typing import Any, Literal

import torch
from torch import nn

IN_PLACE_OPERATORS = ("iadd", "isub", "imul", "itruediv", "ifloordiv", "imod", "ipow", "iand", "ior", "ixor")


@dataclass(eq=False, slots=True)
class Node:
    """One operation of one member.

    Attributes:
        op: `module` is a layer or an opaque module; `function` a torch or operator function; `method` one of a
            tensor's; `attribute` a tensor that the model holds; `input` the model's input.
        target: the function, the method's name, or the path of the module or tensor in the model.
        args: may hold nodes, also nested in tuples, lists and dicts.
        spec: of the output.
        signature: nodes of equal signatures do the same to inputs of the same shape.
        opaque: whether the module is called as it is, because its forward could not be traced.
        inputs: the nodes among the arguments, in order.
        eval_args: `args` and `kwargs` outside training, where those differ.
    """

    op: Literal["input", "module", "function", "method", "attribute"]
    target: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    spec: Any
    module: nn.Module | None = None
    opaque: bool = False
    eval_args: tuple[tuple[Any, ...], dict[str, Any]] | None = None
    signature: Hashable = None
    inputs: tuple["Node", ...] = None  # type: ignore[assignment]  # read from the arguments unless given

    def __post_init__(self) -> None:
        if self.inputs is None:
            self.inputs = tuple(nodes_in((self.args, self.kwargs)))

    @property
    def name(self) -> str:
        """The operation's display name: `conv2d`, `relu`, `add`."""
        if self.module is not None:
            return type(self.module).__name__
        return str(getattr(self.target, "__name__", self.target))


def nodes_in(tree: Any) -> Iterator[Node]:
    """Yield the nodes in nested arguments, in order."""
    if isinstance(tree, Node):
        yield tree
    elif isinstance(tree, tuple | list):
        for item in tree:
            yield from nodes_in(item)
    elif isinstance(tree, dict):
        for item in tree.values():
            yield from nodes_in(item)
    elif isinstance(tree, slice):
        yield from nodes_in((tree.start, tree.stop, tree.step))


def map_nodes(tree: Any, change: Callable[[Node], Any]) -> Any:
    """Return the same nested arguments with `change` applied to every node."""
    if isinstance(tree, Node):
        return change(tree)
    if isinstance(tree, tuple | list):
        return type(tree)(map_nodes(item, change) for item in tree)
    if isinstance(tree, dict):
        return {key: map_nodes(item, change) for key, item in tree.items()}
    if isinstance(tree, slice):
        return slice(*(map_nodes(part, change) for part in (tree.start, tree.stop, tree.step)))
    return tree


def changes_in_place(node: Node) -> bool:
    """Whether the node overwrites its first input, or a tensor passed for its result."""
    if node.module is not None:
        return bool(getattr(node.module, "inplace", False))
    if node.op not in ("function", "method"):
        return False
    if node.kwargs.get("out") is not None:  # some functions of torch pass it on as None
        return True
    name = str(getattr(node.target, "__name__", node.target))
    if (name.endswith("_") and not name.endswith("__")) or name in IN_PLACE_OPERATORS:
        return True
    given = node.kwargs
    if len(node.args) > 1 and isinstance(node.target, FunctionType):
        given = inspect.signature(node.target).bind_partial(*node.args, **given).arguments
    return bool(given.get("inplace", False))


def tensors_of(node: Node) -> Iterable[torch.Tensor]:
    """Return the parameters and buffers that a node uses."""
    if node.module is not None:
        if node.module._modules:
            return [*node.module.parameters(), *node.module.buffers()]
        if node.module._buffers:
            return [
                tensor
                for tensor in (*node.module._parameters.values(), *node.module._buffers.values())
                if tensor is not None
            ]
        return [tensor for tensor in node.module._parameters.values() if tensor is not None]
    return node.args if node.op == "attribute" else ()
