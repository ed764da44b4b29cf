"""What a module's own forward does, its children left as calls: traced by torch.fx once for each structure."""

import dis
import inspect
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from types import CodeType
from typing import Any

from torch import fx, nn

from nasflow.merge.structure import is_hooked

# A trace does not see these: whoever uses them is called as it is.
_UNSEEN = frozenset({"no_grad", "enable_grad", "set_grad_enabled", "inference_mode", "autocast", "checkpoint"})
_CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
_REMEMBERED = 4_096
_known: "OrderedDict[int, Template | None]" = OrderedDict()


@dataclass(frozen=True)
class TemplateStep:
    """One call in a forward; arguments hold `Name`s of earlier results."""

    op: str
    name: str
    target: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    eval_args: tuple[tuple[Any, ...], dict[str, Any]] | None = None


@dataclass(frozen=True)
class Name:
    """Stands for the result of a step, or for an argument of the forward."""

    of: str


@dataclass(frozen=True)
class Template:
    """A traced forward."""

    parameters: inspect.Signature
    steps: tuple[TemplateStep, ...]
    output: Any

    def takes(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether the forward can be called so: with every argument given, none by a default."""
        try:
            bound = self.parameters.bind(*args, **kwargs)
        except TypeError:
            return False
        return len(bound.arguments) == len(self.parameters.parameters)

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """The arguments by name."""
        return dict(self.parameters.bind(*args, **kwargs).arguments)

    def read(self, tree: Any, values: dict[str, Any]) -> Any:
        """Nested arguments with the names replaced."""
        if isinstance(tree, Name):
            return values[tree.of]
        if isinstance(tree, tuple | list):
            return type(tree)(self.read(item, values) for item in tree)
        if isinstance(tree, dict):
            return {key: self.read(item, values) for key, item in tree.items()}
        if isinstance(tree, slice):
            return slice(*(self.read(part, values) for part in (tree.start, tree.stop, tree.step)))
        return tree


def is_layer(module: nn.Module) -> bool:
    """Whether it is one of torch's own layers, called as a whole."""
    return type(module).__module__.startswith("torch.nn") and type(module) not in (
        nn.Sequential,
        nn.ModuleList,
        nn.ModuleDict,
    )


def template_of(module: nn.Module, key: int) -> "Template | None":
    """The template of a module's forward, or None if it can't be traced; `key` is the number of its structure."""
    if key not in _known:
        _known[key] = _trace(module)
        if len(_known) > _REMEMBERED:
            _known.popitem(last=False)
    _known.move_to_end(key)
    return _known[key]


class _Tracer(fx.Tracer):
    proxy_buffer_attributes = True  # what follows from a buffer's values is not to be taken for a constant

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return True


def _trace(module: nn.Module) -> "Template | None":
    parameters = inspect.signature(module.forward)
    varied = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    names = _names_used(type(module))
    if is_hooked(module) or names & _UNSEEN or any(p.kind in varied for p in parameters.parameters.values()):
        return None
    try:
        if (graph := _unchanging(module)) is None:
            return None
        steps, output = _steps(graph)
        if "training" in names:
            return _with_eval(module, parameters, steps, output)
    except Exception:  # fx refuses in many ways, and a forward given stand-ins may raise anything
        return None
    return Template(parameters, tuple(steps), output)


def _unchanging(module: nn.Module) -> fx.Graph | None:
    """The graph of a forward, or None if it writes into attributes: a trace would see that once and never again."""
    before = {part: dict(vars(part)) for part in module.modules()}
    graph = _Tracer().trace(module)
    changed = False
    for part, fields in before.items():
        if vars(part).keys() != fields.keys() or any(vars(part)[name] is not fields[name] for name in fields):
            vars(part).clear()
            vars(part).update(fields)
            changed = True
    return None if changed else graph


def _with_eval(
    module: nn.Module, parameters: inspect.Signature, steps: list[TemplateStep], output: Any
) -> "Template | None":
    """Both modes in one template, if they make the same calls and differ in arguments alone."""
    if not module.training:
        return Template(parameters, tuple(steps), output)  # frozen in eval mode, where it stays
    modes = {part: part.training for part in module.modules()}
    try:
        module.eval()
        other, other_output = _steps(_Tracer().trace(module))
    finally:
        for part, training in modes.items():
            part.training = training
    if [(s.op, s.name, s.target) for s in steps] != [(s.op, s.name, s.target) for s in other] or output != other_output:
        return None
    both = []
    for step, twin in zip(steps, other, strict=True):
        same = step.args == twin.args and step.kwargs == twin.kwargs
        changed = None if same else (twin.args, twin.kwargs)
        both.append(TemplateStep(step.op, step.name, step.target, step.args, step.kwargs, changed))
    return Template(parameters, tuple(both), output)


def _steps(graph: fx.Graph) -> tuple[list[TemplateStep], Any]:
    steps: list[TemplateStep] = []
    names: dict[str, str] = {}
    output: Any = None
    for node in graph.nodes:
        if node.op == "placeholder":
            names[node.name] = str(node.target)
            continue
        names[node.name] = f"%{node.name}"
        args, kwargs = _named(node.args, names), _named(node.kwargs, names)
        if node.op == "output":
            output = args[0]
        else:
            steps.append(TemplateStep(node.op, names[node.name], node.target, args, dict(kwargs)))
    return steps, output


def _named(tree: Any, names: dict[str, str]) -> Any:
    if isinstance(tree, fx.Node):
        return Name(names[tree.name])
    if isinstance(tree, tuple):
        return tuple(_named(item, names) for item in tree)
    if isinstance(tree, list):
        return [_named(item, names) for item in tree]
    if isinstance(tree, dict):
        return {key: _named(item, names) for key, item in tree.items()}
    if isinstance(tree, slice):
        return slice(*(_named(part, names) for part in (tree.start, tree.stop, tree.step)))
    return tree


def _names_used(kind: type) -> set[str]:
    """Every name that the methods of a user's class speak of, those of its bases in torch left out."""
    used: set[str] = set()
    for base in kind.__mro__:
        if base.__module__.startswith("torch.") or base is object:
            continue
        for member in vars(base).values():
            function: Callable[..., Any] | None = getattr(member, "__func__", member)
            function = getattr(function, "fget", function)
            if isinstance(getattr(function, "__code__", None), CodeType):
                used |= _names_in(function.__code__)  # type: ignore[union-attr]
    return used


def _names_in(code: CodeType) -> set[str]:
    used = {str(i.argval) for i in dis.get_instructions(code) if i.opname.startswith("LOAD_")}
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            used |= _names_in(constant)
    return used
