"""The checkpoints of one trial: a folder an epoch, tensors in safetensors, everything else in JSON, nothing pickled."""

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

from nasflow.errors import CheckpointError
from nasflow.training.packing import pack, unpack

_EPOCH = re.compile(r"epoch-(\d{4,})")


class CheckpointStore:
    """Saves and loads a trial's state by finished epochs; epoch 0 is the state after init.

    A checkpoint is written aside, synced, and renamed, so that a folder with its final name is whole. The one before
    is removed only after that.

    Args:
        folder: the trial's own folder.
        keep: how many of the newest checkpoints stay.
    """

    def __init__(self, folder: Path, keep: int = 2):
        self._folder = folder
        self._keep = keep

    def save(self, epoch: int, state: dict[str, Any]) -> Path:
        """Save `state` (what `packing.pack` takes) as the checkpoint of `epoch`, then drop the oldest ones."""
        values, tensors = pack(state)
        target = self.path(epoch)
        aside = self._folder / f".{target.name}.{os.getpid()}"
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir(parents=True)
        _write(aside / "tensors.safetensors", save(tensors))
        _write(aside / "state.json", json.dumps(values, allow_nan=False).encode())
        if target.exists():  # an epoch trained again after an interruption gives the same state
            shutil.rmtree(target)
        aside.rename(target)
        self._retain()
        return target

    def load(self, epoch: int) -> dict[str, Any]:
        """The state saved for `epoch`, its tensors on the CPU.

        Raises:
            CheckpointError: there is none, or a file of it can't be read.
        """
        folder = self.path(epoch)
        try:
            tensors: dict[str, torch.Tensor] = load((folder / "tensors.safetensors").read_bytes())
            values = json.loads((folder / "state.json").read_text())
            state = unpack(values, tensors)
        except (OSError, SafetensorError, ValueError, TypeError, KeyError, RecursionError) as error:
            raise CheckpointError(f"checkpoint {folder} can't be read: {error}") from error
        if not isinstance(state, dict):
            raise CheckpointError(f"checkpoint {folder} holds no state")
        return state

    def epochs(self) -> list[int]:
        """The epochs that have a checkpoint, oldest first."""
        if not self._folder.is_dir():
            return []
        found = (_EPOCH.fullmatch(entry.name) for entry in self._folder.iterdir())
        return sorted(int(match.group(1)) for match in found if match)

    def load_newest(self) -> dict[str, Any] | None:
        """The newest state that can be read, or None when there is none; unreadable ones are removed."""
        for epoch in reversed(self.epochs()):
            try:
                return self.load(epoch)
            except CheckpointError:
                if self.epochs()[0] == epoch:
                    raise
                shutil.rmtree(self.path(epoch))
        return None

    def path(self, epoch: int) -> Path:
        """The folder of an epoch's checkpoint."""
        return self._folder / f"epoch-{epoch:04d}"

    def _retain(self) -> None:
        for epoch in self.epochs()[: -self._keep]:
            shutil.rmtree(self.path(epoch))
        for entry in self._folder.glob(".epoch-*"):  # left by a process that was killed while saving
            if entry.name.rpartition(".")[2] != str(os.getpid()):
                shutil.rmtree(entry, ignore_errors=True)


def _write(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
