"""Takes the place of the members' modules in a step that runs once for all: only what is equal can be read."""

import inspect
import types
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from typing import Any

import torch
import torchmetrics
from pytorch_lightning import LightningModule
from torch import nn

from nasflow.training.unit.lockstep.joint.purity import exact, is_plain, is_pure, values_read

_OF_LIGHTNING = {"current_epoch", "device", "dtype"}
_PARTS = {"_modules", "_parameters", "_buffers"}


class NotJointError(Exception):
    """A step can't run once for all members: it uses something that may differ between them, or changes something."""


def rows(marker: torch.Tensor, make: Callable[..., torch.Tensor], shared: torch.Tensor | None = None) -> torch.Tensor:
    """Bring a stacked tensor `[n, ...]` into `torch.vmap`, where it is one member's `[...]`.

    Args:
        marker: any tensor that has a row for each member there.
        make: returns the stacked tensor, outside of `torch.vmap`; with autograd, if that is on.
        shared: given to `make`; the same for all members.

    Raises:
        NotJointError: it differs between them.
    """
    made: torch.Tensor = _Rows.apply(marker, make, shared)  # type: ignore[no-untyped-call]
    return made


class _Rows(torch.autograd.Function):
    @staticmethod
    def forward(marker: torch.Tensor, make: Any, shared: Any) -> torch.Tensor:
        raise NotJointError("not within torch.vmap")

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def vmap(info: Any, in_dims: Any, marker: torch.Tensor, make: Any, shared: Any) -> tuple[torch.Tensor, int]:
        if in_dims[2] is not None:
            raise NotJointError("its model reads what differs between members")
        return make(shared), 0


FAILED = object()
"""What `by_row` fills with zeros."""


def by_row(marker: torch.Tensor, run: Callable[..., Any], *args: torch.Tensor) -> torch.Tensor:
    """Run something for each member, outside of `torch.vmap`, with its own `args`; return what that gives, if anything.

    Args:
        run: gets the member's row and the arguments; may return FAILED.
    """
    made: torch.Tensor = _ByRow.apply(marker, run, *args)  # type: ignore[no-untyped-call]
    return made


class _ByRow(torch.autograd.Function):
    @staticmethod
    def forward(marker: torch.Tensor, run: Any, *args: torch.Tensor) -> torch.Tensor:
        raise NotJointError("not within torch.vmap")

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def vmap(info: Any, in_dims: Any, marker: torch.Tensor, run: Any, *args: torch.Tensor) -> tuple[torch.Tensor, int]:
        found = []
        for row in range(info.batch_size):
            own = [arg if dim is None else arg.select(dim, row) for arg, dim in zip(args, in_dims[2:], strict=True)]
            found.append(run(row, *own))
        made = [torch.zeros(()) if value is None else value for value in found]
        empty = next((torch.zeros_like(torch.as_tensor(v)) for v in made if v is not FAILED), torch.zeros(()))
        return torch.stack([empty if value is FAILED else torch.as_tensor(value) for value in made]), 0


class JointView:
    """Reads as a LightningModule that is any of the members', and refuses all by which they may differ.

    Args:
        modules: the members'.
        answers: what takes the place of some of their attributes, by name.
        metric: returns what takes the place of a torchmetrics Metric of theirs, by name.
    """

    def __init__(
        self,
        modules: Sequence[LightningModule],
        answers: Mapping[str, Any],
        metric: Callable[[str], Any],
    ):
        object.__setattr__(self, "_joint", Reader(modules, answers, metric, self))

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        kind: type = self._joint.kind
        return kind

    def __getattr__(self, name: str) -> Any:
        return self._joint.read(name)

    def __setattr__(self, name: str, value: Any) -> None:
        raise NotJointError(f"it sets self.{name}")

    def __delattr__(self, name: str) -> None:
        raise NotJointError(f"it deletes self.{name}")


def reader_of(view: JointView) -> "Reader":
    """Return what looks attributes up for a view."""
    found: Reader = object.__getattribute__(view, "_joint")
    return found


class Reader:
    """Looks attributes up for a view, once each.

    Attributes:
        kind: the class of the modules.
    """

    def __init__(self, modules: Sequence[LightningModule], answers: Mapping[str, Any], metric: Any, view: JointView):
        self.kind = type(modules[0])
        self._modules, self._metric, self._view = modules, metric, view
        self._found: dict[str, Any] = dict(answers)
        self._answers = set(answers)
        self._seen: list[tuple[dict[str, Any], str, Any]] = []  # attributes of the modules, and their values

    def read(self, name: str) -> Any:
        """Return what the members' modules all have under a name. Raises NotJointError if that may differ."""
        if name not in self._found:
            self._found[name] = self._look_up(name)
        return self._found[name]

    @property
    def is_stale(self) -> bool:
        """Whether attributes have been set since, as by a learning-rate schedule with code of its own."""
        return any(own.get(name) is not value for own, name, value in self._seen)

    @property
    def names(self) -> frozenset[str]:
        """What has been read, but for what stands in for the members'."""
        return frozenset(self._found.keys() - self._answers)

    def signature(self, step: types.FunctionType, names: Collection[str]) -> Hashable:
        """Return what determines what a step that reads these names computes, beside its arguments.

        Raises:
            NotJointError: a name can't be read any more.
        """
        values = [(name, _signature(self.read(name), self.kind)) for name in sorted(names)]
        return _signature(step, self.kind), tuple(values)

    def _look_up(self, name: str) -> Any:
        first = self._modules[0]
        if name in first._modules:
            return self._part(name)
        if name in vars(first):
            found = _equal([vars(module).get(name, object()) for module in self._modules], name)
            self._seen += [(vars(module), name, vars(module)[name]) for module in self._modules]
            return found
        if name in _OF_LIGHTNING:
            return _equal([getattr(module, name) for module in self._modules], name)
        found = inspect.getattr_static(self.kind, name, None)
        owner = next((one for one in self.kind.__mro__ if name in vars(one)), object)
        if owner.__module__.partition(".")[0] in ("pytorch_lightning", "lightning", "torch", "builtins"):
            raise NotJointError(f"it uses self.{name}")
        return self._of_class(found, name)

    def _of_class(self, found: Any, name: str) -> Any:
        function: Any = found.fget if isinstance(found, property) else getattr(found, "__func__", found)
        if is_plain(found):
            return found
        if not is_pure(function, self.kind):
            raise NotJointError(f"self.{name} may use or change something else than its arguments")
        if isinstance(found, property):
            raise NotJointError(f"self.{name} is a property")
        if isinstance(found, classmethod):
            raise NotJointError(f"self.{name} is a class method")  # it may read attributes of its class
        if isinstance(found, staticmethod):
            return function
        return types.MethodType(function, self._view)

    def _part(self, name: str) -> Any:
        parts = [module._modules[name] for module in self._modules]
        if any(type(part) is not type(parts[0]) for part in parts):
            raise NotJointError(f"self.{name} differs")
        if isinstance(parts[0], torchmetrics.Metric):
            return self._metric(name)
        return _stateless(parts, name)


def _signature(value: Any, kind: type) -> Hashable:
    if isinstance(value, types.MethodType):
        return _signature(value.__func__, kind)
    if isinstance(value, types.FunctionType):
        return value, tuple(values_read(value, kind))
    if isinstance(value, nn.Module):
        options = [(key, exact(own)) for key, own in vars(value).items() if is_plain(own)]
        return type(value), tuple(options), values_of_buffers(value)
    return exact(value) if is_plain(value) else (type(value), value.signature())


def values_of_buffers(module: nn.Module) -> Hashable:
    """Return the shapes and values of a module's buffers."""
    return tuple(
        (name, tuple(buffer.shape), tuple(map(exact, buffer.flatten().tolist())))
        for name, buffer in module.named_buffers()
    )


def _equal(values: Sequence[Any], name: str) -> Any:
    first = values[0]
    if not all(map(is_plain, values)) or len(set(map(exact, values))) > 1:
        raise NotJointError(f"self.{name} may differ or change")
    return first


def _stateless(parts: Sequence[Any], name: str) -> nn.Module:
    """Return the first of equal layers of torch that keep nothing."""
    first = parts[0]
    if type(first).__module__.rpartition(".")[0] != "torch.nn.modules" or isinstance(first, nn.Sequential):
        raise NotJointError(f"self.{name} is a layer of its own")
    is_loss = isinstance(first, nn.modules.loss._Loss)
    for part in parts:
        if part._forward_hooks or part._forward_pre_hooks or part._modules or any(part.parameters()):
            raise NotJointError(f"self.{name} has parameters, hooks or layers")
    for key, value in vars(first).items():
        if not key.startswith("_") and key not in _PARTS:
            _equal([value, *(vars(part).get(key) for part in parts[1:])], f"{name}.{key}")
    buffers = [dict(part.named_buffers()) for part in parts]
    if buffers[0] and not (is_loss and all(_same(buffers[0], other) for other in buffers)):
        raise NotJointError(f"self.{name} has buffers")
    return first  # type: ignore[no-any-return]


def _same(one: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)
