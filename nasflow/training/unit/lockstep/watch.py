"""What a unit relies on that the members' own code may change between steps, in hooks or elsewhere."""

import operator
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from nasflow.merge.trace.graph import Graph
from nasflow.merge.trace.op_properties import runs_own_code
from nasflow.merge.trace.signature import own_structure
from nasflow.tensors import address
from nasflow.training.member.member import Member
from nasflow.training.member.trainer.hooks import EndsEpochError
from nasflow.training.unit.lockstep.pausing import InnerBackwardError
from nasflow.training.unit.reasons import CHANGES, ENDS_EPOCH, INNER_BACKWARD, SETTINGS, STRIDES, views_as_rows

_mode = operator.attrgetter("training")
_memory: Any = torch._C._data_address  # type: ignore[attr-defined]  # the address of what a tensor is a view of


class _Noted(NamedTuple):
    """The parameters of a part, the dicts of their layers that have them, and where their memory is; all layers."""

    owners: Sequence[dict[str, nn.Parameter | None]]
    names: Sequence[str]
    parameters: Sequence[torch.Tensor]
    places: Sequence[int]
    layers: Sequence[nn.Module]


class Watch:
    """Notes what members are like when a unit is built, and tells who has changed since."""

    def __init__(self) -> None:
        self._relied: dict[Member, Sequence[torch.Tensor]] = {}
        self._places: dict[Member, Any] = {}
        self._parameters: dict[nn.Module, _Noted] = {}
        self._stepped: dict[Member, list[int]] = {}
        self._parts: dict[Member, tuple[Sequence[nn.Module], Collection[nn.Module]]] = {}
        self._read: dict[Member, Sequence[tuple[nn.Module, str]]] = {}  # tensors by their layers and names
        self._kept: list[Any] = []  # layers and tensors, so that their ids are not used again
        self._settings: dict[Member, list[Hashable]] = {}

    def rely_on(self, members: Mapping[Member, Sequence[torch.Tensor]], parts: Iterable[nn.Module]) -> None:
        """Note where tensors are, and which the parameters of parts are, of these members and no others."""
        self._relied = dict(members)
        self._parameters = {part: _parameters(part) for part in parts}
        self._places = {member: _places(tensors) for member, tensors in members.items()}
        self._stepped = {member: _stepped(member) for member in members}

    def note_layers(self, member: Member, parts: Iterable[nn.Module], graphs: Iterable[Graph]) -> None:
        """Note the settings of a member's parts.

        Layers that run as they are may change all but their mode, and put other tensors in the place of their buffers.

        Args:
            graphs: of the parts.
        """
        graphs = list(graphs)
        opaque = [node.module for graph in graphs for node in graph.nodes if node.module and runs_own_code(node)]
        own = {inner for layer in opaque for inner in layer.modules()}
        self._parts[member] = list(parts), own
        self._read[member] = [found for graph in graphs for found in _read_by_name(graph)]
        self._kept += [
            (layer, *layer._parameters.values(), *layer._buffers.values()) for layer in self._layers_of(member)
        ]
        self._settings[member] = self._settings_of(member)

    def moved(self, members: Iterable[Member]) -> dict[Member, str]:
        """Return those of which other tensors are trained than were noted, and what that is called."""
        return {
            member: CHANGES
            for member in members
            if _places(self._relied[member]) != self._places[member] or _stepped(member) != self._stepped[member]
        }

    def is_in_place(self, part: nn.Module, where_too: bool) -> bool:
        """Whether a part has its noted parameters, not others for a call as `torch.func.functional_call` gives it.

        Args:
            where_too: whether they have to be where they were, which `Tensor.data` may have changed.
        """
        noted = self._parameters.get(part)
        if noted is None:
            return True
        # by functions in C, for this is asked in every call
        if not all(map(operator.is_, map(dict.get, noted.owners, noted.names), noted.parameters)):
            return False
        return not where_too or all(map(operator.eq, map(_memory, noted.parameters), noted.places))

    def is_evaluated(self, part: nn.Module) -> bool:
        """Whether all layers of a part are in evaluation mode, not some in training mode as a validation may want."""
        noted = self._parameters.get(part)
        return noted is None or not any(map(_mode, noted.layers))

    def changed(self, members: Iterable[Member]) -> dict[Member, str]:
        """Return those with other settings of layers than were noted."""
        return {member: SETTINGS for member in members if self._settings_of(member) != self._settings[member]}

    def training(self, members: Iterable[Member]) -> dict[Member, str]:
        """Return those with hooks that have a layer in train mode, as none is in validation."""
        watched = [member for member in members if member.hooks.names]
        return {member: SETTINGS for member in watched if any(layer.training for layer in self._layers_of(member))}

    def _settings_of(self, member: Member) -> list[Hashable]:
        """Return what the member's layers are, but for the values of tensors."""
        own = self._parts[member][1]
        found: list[Hashable] = [id(_named(layer, name)) for layer, name in self._read[member]]
        for layer in self._layers_of(member):
            found += [id(layer), *map(id, layer._parameters.values())]
            if layer in own:
                found.append(layer.training)
            else:
                found += [*map(id, layer._buffers.values()), own_structure(layer)]
        return found

    def _layers_of(self, member: Member) -> Iterator[nn.Module]:
        for part in self._parts[member][0]:
            yield from part.modules()


def reason_of(error: BaseException) -> str | None:
    """Return why a member that raises this in a unit trains by itself; None if it is the member's failure."""
    if isinstance(error, InnerBackwardError):
        return INNER_BACKWARD
    if isinstance(error, EndsEpochError):
        return ENDS_EPOCH
    return STRIDES if views_as_rows(error) else None


def _read_by_name(graph: Graph) -> Iterator[tuple[nn.Module, str]]:
    """Yield the tensors that a graph reads itself, not by a call of their layers."""
    for node in graph.nodes:
        if node.op == "attribute":
            path, _, name = str(node.target).rpartition(".")
            yield graph.model.get_submodule(path), name


def _named(layer: nn.Module, name: str) -> Any:
    return layer._buffers.get(name, layer.__dict__.get(name))


def _parameters(part: nn.Module) -> _Noted:
    own = [(layer._parameters, name) for layer in part.modules() for name in layer._parameters]
    found = [(owner, name, parameter) for owner, name in own if (parameter := owner[name]) is not None]
    parameters = [parameter for *_, parameter in found]
    owners, names = [owner for owner, *_ in found], [name for _, name, _ in found]
    return _Noted(owners, names, parameters, [*map(_memory, parameters)], list(part.modules()))


def _places(tensors: Sequence[torch.Tensor]) -> list[tuple[int, bool]]:
    """Return where tensors are in memory, and whether they are trained."""
    return [(address(tensor), tensor.requires_grad) for tensor in tensors]


def _stepped(member: Member) -> list[int]:
    """Return the number of parameters in each group of a member's optimizer."""
    return [len(group["params"]) for group in member.fitting.optimizer.param_groups]
