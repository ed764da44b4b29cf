"""Turns a model into nodes: calls of children are replaced by their nodes, and parts seen before are copied."""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, Literal

from torch import nn

from nasflow.merge.trace.fx_template import Template, arguments_of, is_layer, template_of
from nasflow.merge.trace.node import Node, map_nodes, nodes_in
from nasflow.merge.trace.shape_inference import NotInferableError, Scalar, Spec, infer
from nasflow.merge.trace.signature import Structures, freeze, is_hooked, number_of, tensor_structure

_REMEMBERED = 4_096
_WITH_STATISTICS = ("batch_norm", "instance_norm")  # functions that update running statistics in their arguments


@dataclass(frozen=True, slots=True)
class _Ref:
    """Placeholder for a node in a remembered part: its own node of that index, or an argument if negative."""

    index: int


@dataclass(frozen=True, slots=True)
class _Part:
    """The nodes of a module's call, to be copied for other modules of the same structure."""

    nodes: tuple[Node, ...]
    places: tuple[tuple[str, ...], ...]
    inputs: tuple[tuple[int, ...], ...]
    plain: tuple[bool, ...]  # whether the arguments are exactly the inputs
    output: Any


_parts: "OrderedDict[Hashable, _Part | None]" = OrderedDict()
"""None for a part seen once: most whole candidates never occur again, while their blocks do."""


class Expansion:
    """Appends the nodes of a model's call to `nodes`.

    Raises:
        NotInferableError: the model as a whole can't be run without data.
    """

    def __init__(self, nodes: list[Node]):
        self._nodes = nodes
        self._structures = Structures()

    def call(self, module: nn.Module, path: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Append the nodes of a call; return its result, a node or nested nodes."""
        if is_layer(module):
            return self._leaf(module, path, args, kwargs)
        given = list(dict.fromkeys(nodes_in((args, kwargs))))
        key = (self._structures.whole(module), _shape_of((args, kwargs), given))
        part = _parts.get(key)
        if part is not None:
            _parts.move_to_end(key)
            return self._write(part, module, path, given)
        start, again = len(self._nodes), key in _parts
        output = self._call(module, path, args, kwargs)
        _parts[key] = _remember(self._nodes[start:], path, given, output) if again else None
        if len(_parts) > _REMEMBERED:
            _parts.popitem(last=False)
        return output

    def _call(self, module: nn.Module, path: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if type(module) is nn.Sequential and not is_hooked(module) and len(args) == 1 and not kwargs:
            value = args[0]
            for name, child in module._modules.items():
                value = self.call(child, _below(path, name), (value,), {})
            return value
        given = arguments_of(module, args, kwargs)
        template = None if given is None else template_of(module, self._structures.whole(module), given)
        if given is None or template is None:
            return self._leaf(module, path, args, kwargs)
        start = len(self._nodes)
        try:
            return self._expand(template, given, module, path)
        except NotInferableError:
            if not path:
                raise
            del self._nodes[start:]
            return self._leaf(module, path, args, kwargs)

    def _leaf(self, module: nn.Module, path: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Node:
        key = number_of(("module", self._structures.whole(module), _shape_of((args, kwargs))))
        spec = infer(key, module, args, kwargs)
        return self._add(Node("module", path, args, kwargs, spec, module, not is_layer(module), signature=key))

    def _expand(self, template: Template, given: dict[str, Any], module: nn.Module, path: str) -> Any:
        values = dict(given)

        def read(tree: Any) -> Any:
            return template.read(tree, values)

        for step in template.steps:
            step_args, step_kwargs = read(step.args), read(step.kwargs)
            match step.op:
                case "call_module":
                    child = module.get_submodule(step.target)
                    values[step.name] = self.call(child, _below(path, step.target), step_args, step_kwargs)
                case "get_attr":
                    values[step.name] = self._attribute(module, step.target, path)
                case _:
                    changed = None if step.eval_args is None else read(step.eval_args)
                    values[step.name] = self._function(step.op, step.target, step_args, step_kwargs, changed)
        return read(template.output)

    def _attribute(self, module: nn.Module, target: str, path: str) -> Node:
        owner, _, name = target.rpartition(".")
        tensor = getattr(module.get_submodule(owner), name)
        key = number_of(("attribute", tensor_structure(tensor)))
        return self._add(Node("attribute", _below(path, target), (tensor,), {}, Spec.constant(tensor), signature=key))

    def _function(self, op: str, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any], changed: Any) -> Any:
        if op == "call_function" and not any(True for _ in nodes_in((args, kwargs))):
            return target(*args, **kwargs)
        if getattr(target, "__name__", "") == "getitem" and isinstance(args[0], tuple | list | dict):
            return args[0][args[1]]  # a tuple that the trace itself packed
        kind: Literal["function", "method"] = "function" if op == "call_function" else "method"
        key = number_of((kind, freeze(target), _shape_of((args, kwargs)), changed and _shape_of(changed)))
        spec = infer(key, target, args, kwargs)
        name = getattr(target, "__name__", target)
        if changed is not None and isinstance(spec, Scalar):
            raise NotInferableError(f"{name} gives another number in training than in eval mode")
        statistics = (args[1:3], kwargs.get("running_mean"), kwargs.get("running_var"))
        if name in _WITH_STATISTICS and any(node.op == "attribute" for node in nodes_in(statistics)):
            raise NotInferableError(f"{name} may write into tensors that the model holds")
        return self._add(Node(kind, target, args, kwargs, spec, eval_args=changed, signature=key))

    def _add(self, node: Node) -> Node:
        self._nodes.append(node)
        return node

    def _write(self, part: _Part, module: nn.Module, path: str, given: list[Node]) -> Any:
        """Append the nodes of a remembered part, with this module's own layers and tensors."""
        made: list[Node] = []

        def resolve(ref: _Ref) -> Node:
            return made[ref.index] if ref.index >= 0 else given[-1 - ref.index]

        for model, place, inputs, plain in zip(part.nodes, part.places, part.inputs, part.plain, strict=True):
            owner = module
            target = model.target
            if model.op in ("module", "attribute"):
                names = place if model.op == "module" else place[:-1]
                for name in names:
                    owner = owner._modules[name]  # type: ignore[assignment]
                target = ".".join((path, *place)) if path else ".".join(place)
            sources = tuple([made[index] if index >= 0 else given[-1 - index] for index in inputs])
            if model.op == "attribute":
                args: tuple[Any, ...] = (getattr(owner, place[-1]),)
            else:
                args = sources if len(model.args) == len(sources) and plain else _resolved(model.args, resolve)
            node = Node(
                model.op,
                target,
                args,
                _resolved(model.kwargs, resolve) if model.kwargs else {},
                model.spec,
                owner if model.op == "module" else None,
                model.opaque,
                model.eval_args and _resolved(model.eval_args, resolve),
                model.signature,
                sources,
            )
            made.append(node)
        self._nodes += made
        return _resolved(part.output, resolve)


def _remember(nodes: list[Node], path: str, given: list[Node], output: Any) -> _Part:
    refs = {node: _Ref(index) for index, node in enumerate(nodes)}
    refs.update({node: _Ref(-1 - index) for index, node in enumerate(given)})
    models = []
    for node in nodes:
        args = () if node.op == "attribute" else map_nodes(node.args, refs.__getitem__)
        kwargs = map_nodes(node.kwargs, refs.__getitem__)
        changed = node.eval_args and map_nodes(node.eval_args, refs.__getitem__)
        model = Node(node.op, node.target, args, kwargs, node.spec, None, node.opaque, changed, node.signature, ())
        models.append(model)
    depth = len(path.split(".")) if path else 0
    places = [
        tuple(str(node.target).split(".")[depth:]) if node.op in ("module", "attribute") and node.target else ()
        for node in nodes
    ]
    inputs = [tuple(refs[source].index for source in node.inputs) for node in nodes]
    plain = tuple(all(isinstance(arg, _Ref) for arg in model.args) and not model.kwargs for model in models)
    return _Part(tuple(models), tuple(places), tuple(inputs), plain, map_nodes(output, refs.__getitem__))


def _resolved(tree: Any, resolve: Callable[[_Ref], Node]) -> Any:
    """Return nested arguments with the references replaced."""
    if isinstance(tree, _Ref):
        return resolve(tree)
    if isinstance(tree, tuple | list):
        return type(tree)(_resolved(item, resolve) for item in tree)
    if isinstance(tree, dict):
        return {key: _resolved(item, resolve) for key, item in tree.items()}
    if isinstance(tree, slice):
        return slice(*(_resolved(part, resolve) for part in (tree.start, tree.stop, tree.step)))
    return tree


def _below(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _shape_of(tree: Any, seen: list[Node] | None = None) -> Hashable:
    """Return a key of nested arguments: shapes, constants, and which nodes are identical."""
    order: dict[Node, int] = {} if seen is None else {node: index for index, node in enumerate(seen)}

    def shape(tree: Any) -> Hashable:
        if isinstance(tree, Node):
            return (order.setdefault(tree, len(order)), tree.spec)
        if isinstance(tree, tuple | list):
            return (type(tree), tuple(shape(item) for item in tree))
        if isinstance(tree, dict):
            return tuple((key, shape(item)) for key, item in tree.items())
        if isinstance(tree, slice):
            return ("slice", shape((tree.start, tree.stop, tree.step)))
        return freeze(tree)

    return shape(tree)
