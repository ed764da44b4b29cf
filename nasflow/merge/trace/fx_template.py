"""Traces a module's own forward with torch.fx, once per structure; calls of its children stay calls."""

import functools
import inspect
import operator
import random
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import numpy as np
import torch
from torch import fx, nn
from torch.utils._python_dispatch import TorchDispatchMode

from nasflow.merge.trace.counter_dropout import CounterDropout, is_checkpointed
from nasflow.merge.trace.node import IN_PLACE_OPERATORS, nodes_in
from nasflow.merge.trace.own_gradients import has_own_gradients
from nasflow.merge.trace.signature import (
    freeze,
    has_own_call,
    hidden_state,
    is_hooked,
    is_plain,
    own_structure,
    untouched,
)

_REMEMBERED = 4_096
_known: "OrderedDict[Hashable, Template | None]" = OrderedDict()


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
    """Placeholder for the result of a step, or for an argument of the forward."""

    of: str


@dataclass(frozen=True)
class Template:
    """A traced forward."""

    steps: tuple[TemplateStep, ...]
    output: Any

    def read(self, tree: Any, values: dict[str, Any]) -> Any:
        """Return nested arguments with the names replaced by values."""
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
    """Whether `module` is one of torch's own layers, or in the place of one: it is called as a whole."""
    containers = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
    of_torch = type(module).__module__.startswith("torch.nn") and type(module) not in containers
    return of_torch or type(module) is CounterDropout


def arguments_of(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any] | None:
    """Return the arguments of a call by name, with defaults; None unless these are plain values."""
    if not inspect.ismethod(module.forward):
        return None
    try:
        bound = _signature(module.forward.__func__).bind(module, *args, **kwargs)
    except TypeError:
        return None
    passed = set(bound.arguments)
    bound.apply_defaults()
    given = dict(list(bound.arguments.items())[1:])
    return given if all(name in passed or is_plain(value) for name, value in given.items()) else None


def template_of(module: nn.Module, key: int, given: dict[str, Any]) -> "Template | None":
    """Return the template of a module's forward, or None if it can't be traced.

    Args:
        key: the number of the module's structure.
        given: its arguments by name. Those without nodes become part of the template, because a forward may test
            whether one is None.
    """
    constants = {name: value for name, value in given.items() if next(nodes_in(value), None) is None}
    known = (key, freeze(constants))
    if known not in _known:
        _known[known] = _trace(module, constants)
        if len(_known) > _REMEMBERED:
            _known.popitem(last=False)
    _known.move_to_end(known)
    return _known[known]


class _Proxy(fx.Proxy):
    """Records `x += y` as an in-place operation; fx records a sum, which other readers of `x` would not see."""


def _in_place(name: str) -> Callable[[fx.Proxy, Any], fx.Proxy]:
    function = getattr(operator, name)
    return lambda proxy, other: proxy.tracer.create_proxy("call_function", function, (proxy, other), {})


for _name in IN_PLACE_OPERATORS:
    setattr(_Proxy, f"__{_name}__", _in_place(_name))


class _Tracer(fx.Tracer):
    proxy_buffer_attributes = True  # what depends on a buffer's values is not a constant

    def __init__(self, constants: dict[str, Any]) -> None:
        super().__init__()
        self._constants = constants
        self._mode = _mode()

    def create_args_for_root(self, *args: Any, **kwargs: Any) -> tuple[Any, list[Any]]:
        """Pass constants as they are, not as proxies."""
        function, given = super().create_args_for_root(*args, **kwargs)
        return function, [
            self._constants.get(str(value.node.target), value) if isinstance(value, fx.Proxy) else value
            for value in given
        ]

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return True

    def call_module(self, m: nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Refuse a child whose own `__call__` was traced up to here, and would run again where the child is called."""
        if has_own_call(type(m)):
            raise ValueError("a part does more in its call than in its forward")
        if is_checkpointed() and any(isinstance(part, CounterDropout) for part in m.modules()):
            raise ValueError("its masks are drawn again in the backward")
        return super().call_module(m, forward, args, kwargs)

    def proxy(self, node: fx.Node) -> fx.Proxy:
        return _Proxy(node, self)

    def create_node(self, *args: Any, **kwargs: Any) -> fx.Node:
        """Refuse operations without gradients, in another precision, or inside a custom autograd Function."""
        if _mode() != self._mode:
            raise ValueError("a graph can't record operations that run in another mode")
        return super().create_node(*args, **kwargs)


class _NoWrites(TorchDispatchMode):
    """Refuses writes into tensors that the forward did not create, because the graph would not show them.

    The tracer sees a parameter that is read as `module.weight`. Read through `parameters()`, a list or another module,
    it is the tensor itself.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._made: set[int] = set()  # storages, as torch's own numbers

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = dict(zip((argument.name for argument in func._schema.arguments), args, strict=False)) | kwargs
        for argument in func._schema.arguments:
            if argument.alias_info is not None and argument.alias_info.is_write:
                for tensor in _tensors_in(given.get(argument.name)):
                    if tensor.untyped_storage()._cdata not in self._made:
                        raise ValueError("it writes into a tensor that it did not create")
        result = func(*args, **kwargs)
        read = {tensor.untyped_storage()._cdata for value in given.values() for tensor in _tensors_in(value)}
        self._made.update({tensor.untyped_storage()._cdata for tensor in _tensors_in(result)} - read)
        return result


def _tensors_in(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    return [tensor for item in value for tensor in _tensors_in(item)] if isinstance(value, tuple | list) else []


@functools.lru_cache(maxsize=_REMEMBERED)
def _signature(forward: FunctionType) -> inspect.Signature:
    return inspect.signature(forward)


def _mode() -> tuple[bool, ...]:
    autocast = (torch.is_autocast_enabled(kind) for kind in ("cpu", "cuda"))
    return (torch.is_grad_enabled(), torch.is_inference_mode_enabled(), *autocast)


def _trace(module: nn.Module, constants: dict[str, Any]) -> "Template | None":
    parameters = inspect.signature(module.forward).parameters.values()
    varied = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    if is_hooked(module) or any(parameter.kind in varied for parameter in parameters):
        return None
    if has_own_gradients(type(module)):
        return None
    try:
        with untouched(module), _NoWrites():
            if (traced := _unchanging(module, constants)) is None:
                return None
            return _with_eval(module, constants, *traced)
    except (Exception, SystemExit):  # fx fails in many ways, and a forward called with proxies may raise anything
        return None


def _unchanging(module: nn.Module, constants: dict[str, Any]) -> tuple[list[TemplateStep], Any] | None:
    """Return a forward's steps, or None if it sets attributes or draws random numbers, which a trace runs only once."""
    before = _state(module)
    steps = _steps(_Tracer(constants).trace(module))
    return steps if before == _state(module) else None


def _state(module: nn.Module) -> Hashable:
    """Return a key of what a forward may change, except the values of tensors."""
    fields = tuple(tuple(map(id, vars(part).values())) for part in module.modules())
    numpy = np.random.get_state(legacy=False)["state"].items()
    drawn = tuple((name, value.tobytes() if isinstance(value, np.ndarray) else value) for name, value in numpy)
    return (
        own_structure(module),
        fields,
        hidden_state(module),
        random.getstate(),
        drawn,
        torch.get_rng_state().numpy().tobytes(),
    )


def _with_eval(
    module: nn.Module, constants: dict[str, Any], steps: list[TemplateStep], output: Any
) -> "Template | None":
    """Return one template for training and eval mode, or None unless their calls differ only in constants.

    A model is scored in eval mode, without gradients, and a forward may test for either. Calls of layers have the same
    arguments in both.
    """
    module.eval()
    with torch.no_grad():
        other, other_output = _steps(_Tracer(constants).trace(module))
    if [(s.op, s.name, s.target) for s in steps] != [(s.op, s.name, s.target) for s in other] or output != other_output:
        return None
    both = []
    for step, twin in zip(steps, other, strict=True):
        same = step.args == twin.args and step.kwargs == twin.kwargs
        if not same and (step.op == "call_module" or _names(step) != _names(twin)):
            return None
        changed = None if same else (twin.args, twin.kwargs)
        both.append(TemplateStep(step.op, step.name, step.target, step.args, step.kwargs, changed))
    return Template(tuple(both), output)


def _names(step: TemplateStep) -> list[Name]:
    """Return the names among the arguments of a step, in order."""
    found: list[Name] = []

    def look(tree: Any) -> None:
        if isinstance(tree, Name):
            found.append(tree)
        elif isinstance(tree, slice):
            look((tree.start, tree.stop, tree.step))
        elif isinstance(tree, tuple | list | dict):
            for item in tree.values() if isinstance(tree, dict) else tree:
                look(item)

    look((step.args, step.kwargs))
    return found


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
