"""Pack a state dict as plain JSON and flat tensors, so that nothing is ever pickled."""

import functools
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from nasflow.checkpoint.json_text import MisfitError, text_of
from nasflow.checkpoint.kinds import Kind, kind_of, refuse_unstorable
from nasflow.checkpoint.layout import LaidOut, known_text
from nasflow.errors import CheckpointError
from nasflow.tensors import address

_FEW_BYTES = 2**25

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

        Keys that are not strings, tuples, NaN and infinity are preserved. Parts of the tree may be `LaidOut` or
        `JsonText`.

        Raises:
            CheckpointError: the tree contains something else; the message says where. Nothing of the tree is stored.
        """
        tensors = _Tensors(len(self.blocks), self._places)
        try:
            text = text_of(tree, tensors.place)
        except MisfitError as misfit:
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
        return self._keep(kind_of(tensor), _Group(str(len(self.blocks)), len(tensor), [tensor]))

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

    def place(self, item: Any) -> str:
        """Return as JSON a tensor's place, or a part that is laid or written."""
        if isinstance(item, torch.Tensor):
            return self._place(item)
        if isinstance(item, LaidOut):
            return self._lay(item)
        return known_text(item)

    def _lay(self, laid: LaidOut) -> str:
        layout, parts = laid.layout, laid.layout.split(laid.tensors)
        groups = [
            self.groups.get(kind) or self._new_group(kind, tensors[0])
            for kind, tensors in zip(layout.kinds, parts, strict=True)
        ]
        text = layout.text([group.name for group in groups], tuple(group.length for group in groups))
        for group, tensors, length in zip(groups, parts, layout.lengths, strict=True):
            group.tensors += tensors
            group.length += length
        return text

    def _place(self, tensor: torch.Tensor) -> str:
        if tensor.layout is not torch.strided:
            refuse_unstorable(tensor)
        shape = tensor.shape
        memory = (address(tensor), shape)
        seen = self._known.get(memory) or self.places.get(memory)
        if seen is not None and _same(seen[0], tensor):
            self.used.add(seen[1])
            return seen[2]
        kind = kind_of(tensor)
        group = self.groups.get(kind) or self._new_group(kind, tensor)
        length, shape_text = _shape(shape)
        text = f'{{"$tensor":["{group.name}",{group.length},{shape_text}]}}'
        self.places[memory] = (tensor, group.name, text)
        group.length += length
        group.tensors.append(tensor)
        return text

    def _new_group(self, kind: Kind, tensor: torch.Tensor) -> _Group:
        refuse_unstorable(tensor)
        group = self.groups[kind] = _Group(str(self._number + len(self.groups)))
        self.used.add(group.name)
        return group


@functools.lru_cache(maxsize=4_096)
def _shape(shape: torch.Size) -> tuple[int, str]:
    """Return the number of elements of a tensor, and its shape as JSON."""
    return shape.numel(), str([*shape])


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors of equal shape and address have the same elements."""
    return (one.dtype, one.device, one.stride(), one.is_conj(), one.is_neg()) == (
        *(other.dtype, other.device, other.stride(), other.is_conj(), other.is_neg()),
    )


@torch.no_grad()
def _flat(tensors: list[torch.Tensor]) -> torch.Tensor:
    """Return all elements one after the other, copied to the CPU; needs little extra memory on a GPU."""
    if tensors[0].is_cpu or sum(tensor.nbytes for tensor in tensors) <= _FEW_BYTES:
        flat = [tensor if tensor.dim() == 1 else tensor.flatten() for tensor in tensors]  # there are thousands
        return torch.cat(flat).cpu()
    return torch.cat([tensor.cpu().flatten() for tensor in tensors])
