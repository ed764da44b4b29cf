"""A candidate's computation as a graph with shapes, found without computing anything."""

import operator
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import nn

from nasflow.merge.shapes import NotInferableError, Spec, infer
from nasflow.merge.structure import freeze, own_structure, structure, tensor_structure
from nasflow.merge.template import Template, is_layer, template_of

_IN_PLACE_OPERATORS = frozenset(["iadd", "imul", "isub", "itruediv", "ifloordiv", "ipow", "setitem"])


@dataclass(eq=False, slots=True)
class Node:
    """One operation of one member.

    Attributes:
        op: `module` is a layer or a module that can't be looked into; `function` a torch or operator function;
            `method` one of a tensor's; `attribute` a tensor that the model holds; `input` the model's input.
        target: the function, the method's name, or the path of the module or tensor in the model.
        args: may hold nodes, also nested in tuples, lists and dicts.
        spec: of the output.
        signature: nodes of equal signatures do the same to inputs of the same shape.
        opaque: a module that is called as it is, for its forward could not be traced.
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
    inputs: tuple["Node", ...] = field(default=(), init=False)

    def __post_init__(self) -> None:
        self.inputs = tuple(nodes_in((self.args, self.kwargs)))

    @property
    def name(self) -> str:
        """For people: `conv2d`, `relu`, `add`."""
        if self.module is not None:
            return type(self.module).__name__
        return str(getattr(self.target, "__name__", self.target))


@dataclass(eq=False)
class Graph:
    """One member's nodes in the order in which its own forward runs them.

    Attributes:
        model: the candidate; nodes hold its own layers.
        input: the one tensor that the model takes.
        output: a node whose value is the model's output.
        structure: of the model when it was traced; the graph holds as long as that stays.
    """

    model: nn.Module
    nodes: list[Node]
    input: Node
    output: Node
    structure: Hashable

    @property
    def holds(self) -> bool:
        """Whether the model's attributes are what they were."""
        return structure(self.model) == self.structure

    @property
    def has_opaque(self) -> bool:
        """Whether it calls modules whose forward could not be traced."""
        return any(node.opaque for node in self.nodes)


class NotTraceableError(Exception):
    """The model as a whole can't be seen as a graph; it trains by itself."""


def trace(model: nn.Module, x: Spec) -> Graph:
    """The graph of `model(x)`, with shapes and signatures.

    Modules whose forward can't be traced become opaque nodes; the rest is traced around them.

    Raises:
        NotTraceableError: not even that works; the message says why.
    """
    source = Node("input", "x", (), {}, x, signature=("input",))
    nodes = [source]
    try:
        output = _Expander(nodes).call(model, "", (source,), {})
    except NotInferableError as error:
        raise NotTraceableError(str(error)) from error
    if not isinstance(output, Node) or not isinstance(output.spec, Spec):
        raise NotTraceableError("the model does not give one tensor")
    needed = _needed(nodes, output)
    _refuse_overwriting(needed)
    return Graph(model, needed, source, output, structure(model))


def nodes_in(tree: Any) -> Iterator[Node]:
    """The nodes in nested arguments, in order."""
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
    """The same nested arguments with every node changed."""
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
    """Whether it overwrites its first input."""
    if node.module is not None:
        return bool(getattr(node.module, "inplace", False))
    if node.kwargs.get("inplace") is True:
        return True
    name = str(getattr(node.target, "__name__", node.target))
    in_place = (name.endswith("_") and not name.endswith("__")) or name in _IN_PLACE_OPERATORS
    return in_place and node.op in ("function", "method")


class _Expander:
    """Writes the nodes of a module's call, children in their place."""

    def __init__(self, nodes: list[Node]):
        self._nodes = nodes

    def call(self, module: nn.Module, path: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if type(module) is nn.Sequential and len(args) == 1 and not kwargs:
            value = args[0]
            for name, child in module._modules.items():
                value = self.call(child, f"{path}.{name}" if path else name, (value,), {})
            return value
        template = None if is_layer(module) else template_of(module)
        if template is None or not template.takes(args, kwargs):
            return self._leaf(module, path, args, kwargs)
        return self._expand(template, module, path, args, kwargs)

    def _leaf(self, module: nn.Module, path: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Node:
        opaque = not is_layer(module)
        key = ("module", structure(module) if opaque else own_structure(module), signature_of(args, kwargs))
        spec = infer(key, module, args, kwargs)
        return self._add(Node("module", path, args, kwargs, spec, module, opaque, signature=key))

    def _expand(
        self, template: Template, module: nn.Module, path: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        values = template.bind(args, kwargs)
        start = len(self._nodes)

        def read(tree: Any) -> Any:
            return template.read(tree, values)

        try:
            for step in template.steps:
                where = f"{path}.{step.target}" if path else str(step.target)
                step_args, step_kwargs = read(step.args), read(step.kwargs)
                match step.op:
                    case "call_module":
                        child = module.get_submodule(step.target)
                        values[step.name] = self.call(child, where, step_args, step_kwargs)
                    case "get_attr":
                        values[step.name] = self._attribute(module, step.target, where)
                    case _:
                        changed = None if step.eval_args is None else read(step.eval_args)
                        values[step.name] = self._function(step.op, step.target, step_args, step_kwargs, changed)
        except NotInferableError:
            if not path:
                raise
            del self._nodes[start:]
            return self._leaf(module, path, args, kwargs)
        return read(template.output)

    def _attribute(self, module: nn.Module, target: str, path: str) -> Node:
        owner, _, name = target.rpartition(".")
        tensor = getattr(module.get_submodule(owner), name)
        spec = Spec.constant(tensor)
        return self._add(
            Node("attribute", path, (tensor,), {}, spec, signature=("attribute", tensor_structure(tensor)))
        )

    def _function(self, op: str, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any], changed: Any) -> Any:
        if not any(True for _ in nodes_in((args, kwargs))) and op == "call_function":
            return target(*args, **kwargs)
        picked = _pick(target, args)
        if picked is not None:
            return picked[0]
        kind: Literal["function", "method"] = "function" if op == "call_function" else "method"
        key = (kind, target, signature_of(args, kwargs), None if changed is None else signature_of(*changed))
        spec = infer(key, target, args, kwargs)
        return self._add(Node(kind, target, args, kwargs, spec, eval_args=changed, signature=key))

    def _add(self, node: Node) -> Node:
        self._nodes.append(node)
        return node


def _pick(target: Any, args: tuple[Any, ...]) -> tuple[Any] | None:
    """`sequence[index]` of nodes that were packed by the trace itself needs no operation."""
    if getattr(target, "__name__", "") == "getitem" and isinstance(args[0], tuple | list | dict):
        return (args[0][args[1]],)
    return None


def signature_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Hashable:
    """Arguments as far as shapes and constants go."""
    return (_shape_of(args), _shape_of(kwargs))


def _shape_of(tree: Any) -> Hashable:
    if isinstance(tree, Node):
        return ("node", tree.spec)
    if isinstance(tree, tuple | list):
        return (type(tree), tuple(_shape_of(item) for item in tree))
    if isinstance(tree, dict):
        return tuple((key, _shape_of(item)) for key, item in tree.items())
    if isinstance(tree, slice):
        return ("slice", _shape_of((tree.start, tree.stop, tree.step)))
    return freeze(tree)


def _refuse_overwriting(nodes: list[Node]) -> None:
    """An operation in place is as good as one that is not, if nothing else sees what it writes into."""
    readers = Counter(source for node in nodes for source in set(node.inputs))
    for node in nodes:
        if not changes_in_place(node):
            continue
        written: Node | None = node.inputs[0]
        while written is not None:
            if written.op in ("input", "attribute") or readers[written] > 1 or node.target is operator.setitem:
                raise NotTraceableError(f"{node.name} writes into a tensor that something else reads")
            written = written.inputs[0] if written.op in ("function", "method") and written.inputs else None


def _needed(nodes: list[Node], output: Node) -> list[Node]:
    """Nodes that the output depends on, and those that change their module's buffers or may draw random numbers."""
    used = {output}
    for node in reversed(nodes):
        if node in used or node.op in ("input", "module"):
            used.add(node)
            used.update(node.inputs)
    return [node for node in nodes if node in used]
