"""One safetensors file with the states of several trials, each of which can be read without the others.

The file has a few flat tensors. Its metadata describe them in JSON. `blocks` has for each block, by name, its tensor,
its start and length (in elements), and the CRC-32 of its bytes. `states` has for each trial the block that holds as
JSON its name, its epoch and its state; in that JSON, tensors are given as places in other blocks
(`nasflow.checkpoint.packing`). `checksum` is the CRC-32 of both tables.

Files of earlier versions are read, too: they have no `checksum`, and no name and epoch beside a state.
"""

import json
import os
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from nasflow.checkpoint.packing import Block, Packer, unpack
from nasflow.clean_text import one_line
from nasflow.errors import CheckpointError, UserError

_ENOUGH_BYTES = 2**24

_UNREADABLE = (
    *(FileNotFoundError, SafetensorError, ValueError, TypeError, KeyError, IndexError, AttributeError),
    *(RuntimeError, RecursionError),
)
_LACKING = re.compile(r"allocate memory|unable to (?!.*No such file)")
"""What torch says, in a RuntimeError, if the machine lacks memory, files or the disk."""
_TABLES = {"blocks", "states", "checksum"}


class NewerCheckpointError(UserError):
    """A checkpoint that a newer nasflow has written; the message names the file."""


class Bundle:
    """The states that will be written to one file."""

    def __init__(self) -> None:
        self._packer = Packer()
        self._states: dict[str, str] = {}
        self._used: dict[str, set[str]] = {}
        self._first = 0

    @property
    def is_full(self) -> bool:
        """Whether the states after the first added so many bytes that a larger file would save little time.

        A file stays on disk until none of its trials needs it. On a file system without hard links it is copied once
        for each of them.
        """
        return self._packer.nbytes - self._first > _ENOUGH_BYTES

    def add(self, trial: str, epoch: int, state: dict[str, Any]) -> None:
        """Add a trial's state after `epoch`. Its tensors must not change until `freeze`. Raises as `packing.pack`."""
        text = f'{{"trial":{json.dumps(trial)},"epoch":{epoch},"state":{self._packer.pack(state)}}}'.encode()
        self._states[trial] = self._packer.keep(torch.frombuffer(bytearray(text), dtype=torch.uint8))
        self._used[trial] = {*self._packer.used, self._states[trial]}
        self._first = self._first or self._packer.nbytes

    def freeze(self) -> "Snapshot":
        """Return copies of the states, ready to be written; later changes of the states do not affect them."""
        return Snapshot(self._packer.flat(), self._packer.blocks, self._states, self._used)


@dataclass(frozen=True, eq=False)
class Snapshot:
    """The content of a file.

    Attributes:
        flat: its tensors, by name.
        blocks: ranges of the tensors, by name.
        states: the block with a trial's state, by trial.
        used: that block and all blocks that the state refers to, by trial.
    """

    flat: dict[str, torch.Tensor]
    blocks: dict[str, Block]
    states: dict[str, str]
    used: dict[str, set[str]]

    def only(self, trial: str) -> "Snapshot":
        """Return the part that belongs to one trial."""
        flat: dict[str, list[torch.Tensor]] = {}
        blocks: dict[str, Block] = {}
        for name, (where, start, length) in self.blocks.items():
            if name in self.used[trial]:
                parts = flat.setdefault(where, [])
                blocks[name] = Block(where, sum(map(len, parts)), length)
                parts.append(self.flat[where].narrow(0, start, length))
        whole = {where: torch.cat(parts) for where, parts in flat.items()}
        return Snapshot(whole, blocks, {trial: self.states[trial]}, {trial: self.used[trial]})

    def write(self, path: Path) -> None:
        """Write the file and sync it to disk. If it is killed, temporary files may be left in the folder."""
        views = {name: _bytes(tensor) for name, tensor in self.flat.items()}
        table: dict[str, tuple[str, int, int, int]] = {}
        for name, (where, start, length) in self.blocks.items():
            size = self.flat[where].itemsize
            table[name] = (where, start, length, zlib.crc32(views[where][start * size : (start + length) * size]))
        tables = {"blocks": json.dumps(table), "states": json.dumps(self.states)}
        path.touch()
        mode = path.stat().st_mode  # safetensors creates files that only their owner may read
        save_file(self.flat, path, {**tables, "checksum": _checksum(tables)})
        if path.stat().st_mode != mode:
            path.chmod(mode)
        with path.open("r+b") as file:
            os.fsync(file.fileno())


def read_state(path: Path, trial: str, epoch: int) -> dict[str, Any]:
    """Return the state of one trial after `epoch`, with its tensors on the CPU.

    Raises:
        CheckpointError: there is no such file, it is damaged in its tables or where the state is, or it has no state of
            this trial and epoch.
        NewerCheckpointError: a newer nasflow has written it.
        OSError, MemoryError: it can't be read at present, for a reason that says nothing about its content.
    """
    try:
        with _open(path) as file:
            tables = file.metadata() or {}
            if (checksum := tables.get("checksum")) is not None and checksum != _checksum(tables):
                raise ValueError("its tables are damaged")
            if unknown := tables.keys() - _TABLES:
                if _TABLES - tables.keys():
                    raise ValueError(f"it has unknown tables {sorted(unknown)}")
                raise NewerCheckpointError(f"checkpoint {path} was written by a newer nasflow: upgrade nasflow")
            blocks = _Blocks(file, json.loads(tables["blocks"]))
            states = json.loads(tables["states"])
            if trial not in states:
                raise ValueError(f"it has no state of '{trial}'")
            held = unpack(bytes(_bytes(blocks[states[trial]])), blocks)
            if checksum is None:  # of an earlier version, in which most states have their epoch
                held = {"trial": trial, "epoch": held.get("epoch", epoch), "state": held}
            if (held["trial"], held["epoch"]) != (trial, epoch):
                raise ValueError(f"it holds trial '{held['trial']}' after epoch {held['epoch']}")
            state = held["state"]
    except _UNREADABLE as error:
        reason = one_line(" ".join(str(error).split())[:300])  # torch's errors have many lines
        if isinstance(error, RuntimeError) and _LACKING.search(str(error)):
            raise MemoryError(f"checkpoint {path} can't be read at present: {reason}") from error
        raise CheckpointError(f"checkpoint {path} can't be read: {reason}") from error
    if not isinstance(state, dict):
        raise CheckpointError(f"checkpoint {path} holds no state")
    return state


def _open(path: Path) -> Any:
    """Open a file of safetensors, which calls any file that can't be opened missing."""
    try:
        return safe_open(path, framework="pt")
    except FileNotFoundError:
        if not path.exists():
            raise
    with path.open("rb"), path.open("rb"):  # as often as safetensors does; raises the true error
        pass
    return safe_open(path, framework="pt")


class _Blocks(dict[str, torch.Tensor]):
    """The blocks of a file, each read and checked on first access."""

    def __init__(self, file: Any, table: dict[str, tuple[str, int, int, int]]):
        super().__init__()
        self._file = file
        self._table = table

    def __missing__(self, name: str) -> torch.Tensor:
        where, start, length, checksum = self._table[name]
        block: torch.Tensor = self._file.get_tensor(where).narrow(0, start, length)
        # the name of a tensor begins with its dtype, which the checksum of its bytes does not protect
        if zlib.crc32(_bytes(block)) != checksum or not f"torch.{where}".startswith(f"{block.dtype}."):
            raise ValueError(f"block {name} is damaged")
        self[name] = block
        return block


def _checksum(tables: Mapping[str, str]) -> str:
    """Return the CRC-32 of the tables of blocks and states."""
    return str(zlib.crc32((tables["blocks"] + tables["states"]).encode()))


def _bytes(tensor: torch.Tensor) -> memoryview:
    return tensor.view(torch.uint8).numpy().data
