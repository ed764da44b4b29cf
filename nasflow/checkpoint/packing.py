"""Pack a state dict as plain JSON and flat tensors, so that nothing is ever pickled."""

import functools
import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from json.encoder import encode_basestring_ascii as _quoted
from typing import Any, NamedTuple

import safetensors.torch
import torch

from nasflow.errors import CheckpointError
from nasflow.tensors import address

_FEW_BYTES = 2**25

Kind = tuple[torch.dtype, torch.device]
_Places = dict[tuple[int, torch.Size], tuple[torch.Tensor, str, str]]
"""A tensor, its block, and its place in that block as JSON; by address and shape."""


class Block(NamedTuple):
    """A range of a flat tensor; `start` and `length` count elements."""

    flat: str
    start: int
    length: int


class Packer:
    """Splits trees into JSON and a few flat tensors, because files of many small tensors are slow to write.

    A tree's tensors of one dtype and device are stored one after the other in a *block*. A tensor that an earlier tree
    had too, such as a weight of a frozen trunk that several models share in memory, is stored only once. The trees'
    tensors must not change until `flat` is called.

    Attributes:
        blocks: the range of each block, by name.
        nbytes: bytes of all flat tensors.
        used: the blocks with the tensors of the last tree.
    """

    def __init__(self) -> None:
        self.blocks: dict[str, Block] = {}
        self.nbytes = 0
        self.used: set[str] = set()
        self._groups: dict[Kind, _Group] = {}
        self._places: _Places = {}

    def pack(self, tree: Any) -> str:
        """Return the JSON text of a tree of dicts, lists, tuples, tensors and JSON scalars.

        Keys that are not strings, tuples, NaN and infinity are preserved.

        Raises:
            CheckpointError: the tree contains something else; the message says where. Nothing of the tree is stored.
        """
        tensors = _Tensors(len(self.blocks), self._places)
        try:
            text = _pack(tree, tensors.place)
        except _MisfitError as misfit:
            raise CheckpointError(
                f"state at '{misfit.path}' is a {misfit}, which a checkpoint can't hold; it takes dense tensors, "
                "numbers, text, and dicts, lists and tuples of these"
            ) from misfit
        for kind, group in tensors.groups.items():
            self._keep(kind, group)
        self._places.update(tensors.places)
        self.used = tensors.used
        return text

    def keep(self, tensor: torch.Tensor) -> str:
        """Add a flat tensor as a block, and return the block's name."""
        return self._keep((tensor.dtype, tensor.device), _Group(str(len(self.blocks)), len(tensor), [tensor]))

    def flat(self) -> dict[str, torch.Tensor]:
        """Return copies of all blocks on the CPU, in one flat tensor for each dtype and device."""
        return {group.name: _flat(group.tensors) for group in self._groups.values()}

    def _keep(self, kind: Kind, block: "_Group") -> str:
        group = self._groups.get(kind)
        if group is None:
            group = self._groups[kind] = _Group(f"{kind[0]}.{kind[1]}".removeprefix("torch."))
        self.blocks[block.name] = Block(group.name, group.length, block.length)
        group.length += block.length
        group.tensors += block.tensors
        self.nbytes += block.length * kind[0].itemsize
        return block.name


def pack(tree: Any) -> tuple[str, dict[str, torch.Tensor]]:
    """Return the JSON text of one tree, as `Packer.pack` does, and its blocks by name."""
    packer = Packer()
    text, flat = packer.pack(tree), packer.flat()
    return text, {name: flat[block.flat][block.start :][: block.length] for name, block in packer.blocks.items()}


def unpack(text: str | bytes, blocks: Mapping[str, torch.Tensor]) -> Any:
    """Return the tree that was packed; its tensors are copies, contiguous and on the CPU."""
    return _unpack(json.loads(text), blocks)


def _unpack(tree: Any, blocks: Mapping[str, torch.Tensor]) -> Any:
    if isinstance(tree, list):
        return [_unpack(item, blocks) for item in tree]
    if not isinstance(tree, dict):
        return tree
    match tree:
        case {"$tensor": place}:
            name, offset, shape = place
            return blocks[name].narrow(0, offset, math.prod(shape)).reshape(shape).clone()
        case {"$tuple": items}:
            return tuple(_unpack(item, blocks) for item in items)
        case {"$dict": pairs}:
            return {_unpack(key, blocks): _unpack(value, blocks) for key, value in pairs}
        case {"$float": text}:
            return float(text)
    return {key: _unpack(value, blocks) for key, value in tree.items()}


@dataclass
class _Group:
    """Tensors to be stored one after the other. The references keep their memory from being reused."""

    name: str
    length: int = 0
    tensors: list[torch.Tensor] = field(default_factory=list)


class _Tensors:
    """The tensors of one tree.

    Args:
        number: the number of its first block.
        known: the places of tensors of earlier trees.

    Attributes:
        groups: its new blocks.
        places: the places of its new tensors: block, offset in elements, shape.
        used: all blocks that contain its tensors.
    """

    def __init__(self, number: int, known: _Places):
        self._number = number
        self._known = known
        self.groups: dict[Kind, _Group] = {}
        self.places: _Places = {}
        self.used: set[str] = set()

    def place(self, tensor: torch.Tensor) -> str:
        """Return a tensor's place, as JSON."""
        if tensor.layout is not torch.strided:
            raise _misfit(tensor)
        shape = tensor.shape
        memory = (address(tensor), shape)
        seen = self._known.get(memory) or self.places.get(memory)
        if seen is not None and _same(seen[0], tensor):
            self.used.add(seen[1])
            return seen[2]
        kind = (tensor.dtype, tensor.device)
        group = self.groups.get(kind) or self._new_group(kind, tensor)
        length, shape_text = _shape(shape)
        text = f'{{"$tensor":["{group.name}",{group.length},{shape_text}]}}'
        self.places[memory] = (tensor, group.name, text)
        group.length += length
        group.tensors.append(tensor)
        return text

    def _new_group(self, kind: Kind, tensor: torch.Tensor) -> _Group:
        if tensor.is_meta or not _storable(tensor.dtype):
            raise _misfit(tensor)
        group = self.groups[kind] = _Group(str(self._number + len(self.groups)))
        self.used.add(group.name)
        return group


@functools.lru_cache(maxsize=4_096)
def _shape(shape: torch.Size) -> tuple[int, str]:
    """Return the number of elements of a tensor, and its shape as JSON."""
    return shape.numel(), str([*shape])


def _misfit(tensor: torch.Tensor) -> "_MisfitError":
    kind = f"{tensor.layout} tensor of {tensor.dtype} on {tensor.device}"
    return _MisfitError(kind.replace("torch.", ""))


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors of equal shape and address have the same elements."""
    return (one.dtype, one.device, one.stride(), one.is_conj(), one.is_neg()) == (
        *(other.dtype, other.device, other.stride(), other.is_conj(), other.is_neg()),
    )


class _MisfitError(Exception):
    """A value that a checkpoint can't hold, and the keys that lead to it, the innermost first."""

    def __init__(self, what: str):
        super().__init__(what)
        self.keys: list[Any] = []

    @property
    def path(self) -> str:
        return "".join(f"/{key}" for key in reversed(self.keys)) or "/"


@torch.no_grad()
def _flat(tensors: list[torch.Tensor]) -> torch.Tensor:
    """Return all elements one after the other, copied to the CPU; needs little extra memory on a GPU."""
    if tensors[0].is_cpu or sum(tensor.nbytes for tensor in tensors) <= _FEW_BYTES:
        flat = [tensor if tensor.dim() == 1 else tensor.flatten() for tensor in tensors]  # there are thousands
        return torch.cat(flat).cpu()
    return torch.cat([tensor.cpu().flatten() for tensor in tensors])


@functools.cache
def _storable(dtype: torch.dtype) -> bool:
    """Whether a safetensors file can hold this dtype."""
    try:
        safetensors.torch.save({"": torch.empty(0, dtype=dtype)})
    except (KeyError, RuntimeError, safetensors.SafetensorError):
        return False
    return True


def _pack(tree: Any, place: Callable[[torch.Tensor], str]) -> str:
    """Return JSON text directly: building lists and dicts for an encoder takes a tenth longer."""
    if isinstance(tree, torch.Tensor):
        return place(tree)
    for kind, write in _WRITERS.items():
        if isinstance(tree, kind):
            return write(tree)
    if isinstance(tree, dict):
        return _pack_dict(tree, place)
    if isinstance(tree, list):
        return f"[{','.join(_pack_items(tree, place))}]"
    if isinstance(tree, tuple):
        return f'{{"$tuple":[{",".join(_pack_items(tree, place))}]}}'
    raise _MisfitError(type(tree).__name__)


def _pack_dict(tree: dict[Any, Any], place: Callable[[torch.Tensor], str]) -> str:
    key = None
    try:
        if _are_plain(tuple(tree)):
            pairs = [
                # most values have a writer, so looking it up here saves many calls
                f"{_quoted(key := own)}:{write(value) if (write := _WRITERS.get(type(value))) else _pack(value, place)}"
                for own, value in tree.items()
            ]
            return f"{{{','.join(pairs)}}}"
        pairs = [f"[{_pack((key := own), _refuse)},{_pack(value, place)}]" for own, value in tree.items()]
        return f'{{"$dict":[{",".join(pairs)}]}}'
    except _MisfitError as misfit:
        misfit.keys.append(key)
        raise


def _pack_items(items: Iterable[Any], place: Callable[[torch.Tensor], str]) -> list[str]:
    packed: list[str] = []
    try:
        for item in items:
            packed.append(write(item) if (write := _WRITERS.get(type(item))) else _pack(item, place))
    except _MisfitError as misfit:
        misfit.keys.append(len(packed))
        raise
    return packed


def _pack_float(number: float) -> str:
    text = float.__repr__(number)
    return text if math.isfinite(number) else f'{{"$float":"{text}"}}'


_WRITERS: dict[type, Callable[[Any], str]] = {
    bool: {False: "false", True: "true"}.__getitem__,
    type(None): {None: "null"}.__getitem__,
    float: _pack_float,
    int: int.__repr__,
    str: _quoted,
}
"""bool comes before int, because it is a subclass of int."""


@functools.lru_cache(maxsize=4_096)
def _are_plain(keys: tuple[Any, ...]) -> bool:
    """Whether the keys can be JSON keys, and none of them has a special meaning here."""
    return all(type(key) is str and key[:1] != "$" for key in keys)


def _refuse(_: torch.Tensor) -> str:
    raise _MisfitError("dict with a tensor in a key")
