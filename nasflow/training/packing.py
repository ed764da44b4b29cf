"""Any state dict as plain JSON beside flat tensors, so that nothing is ever pickled."""

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import safetensors.torch
import torch

from nasflow.errors import CheckpointError

_SCALARS = (float, int, str)
_PLAIN = frozenset({int, str, bool, type(None)})
_FEW_BYTES = 2**25

Kind = tuple[torch.dtype, torch.device]
_Places = dict[tuple[int, torch.Size], tuple[torch.Tensor, list[Any]]]
"""By address and shape, a tensor and where it is to lie."""


class Block(NamedTuple):
    """A range of a flat tensor; `start` and `length` count elements."""

    flat: str
    start: int
    length: int


class Packer:
    """Takes trees apart into JSON and a few flat tensors, for files of many small tensors are slow to write.

    A tree's tensors of a dtype and device lie one after the other in a *block*. A tensor that a tree before has shown
    already, such as a weight of a frozen trunk in which several models share their memory, is not kept again. What
    the trees show must stay as it is until `flat` is called.

    Attributes:
        blocks: where they lie, by name.
        nbytes: of all flat tensors.
        used: the blocks with the tensors of the last tree.
    """

    def __init__(self) -> None:
        self.blocks: dict[str, Block] = {}
        self.nbytes = 0
        self.used: set[str] = set()
        self._groups: dict[Kind, _Group] = {}
        self._places: _Places = {}

    def pack(self, tree: Any) -> Any:
        """The JSON of a tree of dicts, lists, tuples, tensors and JSON scalars.

        Dicts keep keys that are no strings, tuples stay tuples, NaN and infinity survive.

        Raises:
            CheckpointError: the tree holds something else; the message says where. Nothing of it is kept.
        """
        tensors = _Tensors(len(self.blocks), self._places)
        try:
            values = _pack(tree, tensors.place)
        except _MisfitError as misfit:
            raise CheckpointError(f"state at '{misfit.path}' is a {misfit}, which a checkpoint can't hold") from misfit
        for kind, group in tensors.groups.items():
            self._keep(kind, group)
        self._places.update(tensors.places)
        self.used = tensors.used
        return values

    def keep(self, tensor: torch.Tensor) -> str:
        """Make a flat tensor a block; its name."""
        return self._keep((tensor.dtype, tensor.device), _Group(str(len(self.blocks)), len(tensor), [tensor]))

    def flat(self) -> dict[str, torch.Tensor]:
        """Copies of all blocks, on the CPU, in a flat tensor for each dtype and device."""
        return {group.name: _flat(group.tensors) for group in self._groups.values()}

    def _keep(self, kind: Kind, block: "_Group") -> str:
        dtype, device = kind
        group = self._groups.setdefault(kind, _Group(f"{dtype}.{device}".removeprefix("torch.")))
        self.blocks[block.name] = Block(group.name, group.length, block.length)
        group.length += block.length
        group.tensors += block.tensors
        self.nbytes += block.length * dtype.itemsize
        return block.name


def pack(tree: Any) -> tuple[Any, dict[str, torch.Tensor]]:
    """The JSON of one tree, as of `Packer`, and its blocks by name."""
    packer = Packer()
    values, flat = packer.pack(tree), packer.flat()
    return values, {name: flat[block.flat][block.start :][: block.length] for name, block in packer.blocks.items()}


def unpack(tree: Any, blocks: Mapping[str, torch.Tensor]) -> Any:
    """The tree that was packed; its tensors are copies, contiguous and on the CPU."""
    if isinstance(tree, list):
        return [unpack(item, blocks) for item in tree]
    if not isinstance(tree, dict):
        return tree
    match tree:
        case {"$tensor": place}:
            name, offset, shape = place
            return blocks[name].narrow(0, offset, math.prod(shape)).reshape(shape).clone()
        case {"$tuple": items}:
            return tuple(unpack(item, blocks) for item in items)
        case {"$dict": pairs}:
            return {unpack(key, blocks): unpack(value, blocks) for key, value in pairs}
        case {"$float": text}:
            return float(text)
    return {key: unpack(value, blocks) for key, value in tree.items()}


@dataclass
class _Group:
    """Tensors that are to lie one after the other. While they are here, no others can come to lie in their memory."""

    name: str
    length: int = 0
    tensors: list[torch.Tensor] = field(default_factory=list)


class _Tensors:
    """The tensors of one tree.

    Args:
        number: of its first block.
        known: where those lie that trees before have shown.

    Attributes:
        groups: its blocks.
        places: where its own lie: block, offset in elements, shape.
        used: the blocks with its tensors.
    """

    def __init__(self, number: int, known: _Places):
        self._number = number
        self._known = known
        self.groups: dict[Kind, _Group] = {}
        self.places: _Places = {}
        self.used: set[str] = set()

    def place(self, tensor: torch.Tensor) -> list[Any]:
        """Where it is to lie."""
        dtype, device = kind = (tensor.dtype, tensor.device)
        if tensor.layout is not torch.strided or not _storable(dtype, device):
            raise _MisfitError(f"{tensor.layout} tensor of {dtype} on {device}".replace("torch.", ""))
        memory = (tensor.data_ptr(), tensor.shape)
        seen = self._known.get(memory) or self.places.get(memory)
        if seen is not None and _same(seen[0], tensor):
            found = seen[1]
        else:
            group = self.groups.get(kind)
            if group is None:
                group = self.groups[kind] = _Group(str(self._number + len(self.groups)))
            found = [group.name, group.length, list(memory[1])]
            self.places[memory] = (tensor, found)
            group.length += tensor.numel()
            group.tensors.append(tensor)
        self.used.add(found[0])
        return found


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether tensors of one shape that begin at one address show the same numbers."""
    return (one.dtype, one.device, one.stride(), one.is_conj(), one.is_neg()) == (
        *(other.dtype, other.device, other.stride(), other.is_conj(), other.is_neg()),
    )


class _MisfitError(Exception):
    """Something that a checkpoint can't hold; keys on the way to it, the innermost first."""

    def __init__(self, what: str):
        super().__init__(what)
        self.keys: list[Any] = []

    @property
    def path(self) -> str:
        return "".join(f"/{key}" for key in reversed(self.keys)) or "/"


@torch.no_grad()
def _flat(tensors: list[torch.Tensor]) -> torch.Tensor:
    """All elements one after the other, copied to the CPU; of a GPU's memory this takes a little at most."""
    if tensors[0].is_cpu or sum(tensor.nbytes for tensor in tensors) <= _FEW_BYTES:
        return torch.cat([tensor.flatten() for tensor in tensors]).cpu()
    return torch.cat([tensor.cpu().flatten() for tensor in tensors])


@functools.cache
def _storable(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether a file can hold such a tensor."""
    if device.type == "meta":
        return False
    try:
        safetensors.torch.save({"": torch.empty(0, dtype=dtype)})
    except (KeyError, RuntimeError, safetensors.SafetensorError):
        return False
    return True


def _pack(tree: Any, place: Callable[[torch.Tensor], Any]) -> Any:
    kind = type(tree)  # most of a state is of these kinds; subclasses take the longer way
    if kind in _PLAIN:
        return tree
    if kind is dict and _are_plain(tuple(tree)):
        return _pack_values(tree, place)
    if isinstance(tree, torch.Tensor):
        return {"$tensor": place(tree)}
    if tree is None or isinstance(tree, _SCALARS):
        return tree if not isinstance(tree, float) or math.isfinite(tree) else {"$float": str(tree)}
    if isinstance(tree, tuple):
        return {"$tuple": list(_pack_values(dict(enumerate(tree)), place).values())}
    if isinstance(tree, list):
        return list(_pack_values(dict(enumerate(tree)), place).values())
    if isinstance(tree, dict):
        values = _pack_values(tree, place)
        if all(isinstance(key, str) and not key.startswith("$") for key in tree):
            return values
        return {"$dict": [[_pack_key(key), value] for key, value in values.items()]}
    raise _MisfitError(type(tree).__name__)


@functools.lru_cache(maxsize=4_096)
def _are_plain(keys: tuple[Any, ...]) -> bool:
    """Whether JSON has such keys, and none of them means something else here."""
    return all(type(key) is str and key[:1] != "$" for key in keys)


def _pack_values(tree: Mapping[Any, Any], place: Callable[[torch.Tensor], Any]) -> dict[Any, Any]:
    key = None
    try:
        return {
            (key := own): value if type(value) in _PLAIN else _pack(value, place)  # the first to save many calls
            for own, value in tree.items()
        }
    except _MisfitError as misfit:
        misfit.keys.append(key)
        raise


def _pack_key(key: Any) -> Any:
    def refuse(_: torch.Tensor) -> Any:
        raise _MisfitError("dict with a tensor in a key")

    return _pack(key, refuse)
