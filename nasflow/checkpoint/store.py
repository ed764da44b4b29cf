"""The checkpoints of one trial on disk: a file an epoch, which other trials of its job may share; nothing is pickled.

`url_store` is the same at a URL; `nasflow.training.member_checkpoints` decides which of them a job uses.
"""

import logging
import os
import shutil
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from nasflow.checkpoint.bundle import Bundle, Snapshot, read_state
from nasflow.checkpoint.names import Name, parse, valid
from nasflow.errors import CheckpointError
from nasflow.system.small_files import sync_folder

logger = logging.getLogger(__name__)

_ASIDE = ".aside-"


class CheckpointStore:
    """Saves and loads a trial's state by finished epochs; epoch 0 is the state after init.

    A checkpoint is written in a temporary folder, synced, and renamed, so that a file with its final name is complete.
    Older ones are removed only after that.

    Args:
        folder: the trial's own folder. Its name identifies the trial in files. Of the processes that save there only
            those of the latest generation count (`nasflow.checkpoint.names`), and of a generation there may be one.
        keep: how many of the newest checkpoints are kept.
        generation: of what is saved.
        ending: of its files' names.
    """

    def __init__(self, folder: Path, keep: int = 2, generation: int = 0, ending: str = "safetensors"):
        self._folder = folder
        self._keep = keep
        self._generation = generation
        self._ending = ending
        self._saved: set[Name] | None = None  # what may be dropped here; None before the first save

    @property
    def trial(self) -> str:
        """The trial's name in files."""
        return self._folder.name

    def save(self, epoch: int, state: dict[str, Any]) -> Path:
        """Save `state` (what `packing.pack` takes) as the checkpoint of `epoch`, then drop the oldest ones."""
        bundle = Bundle()
        bundle.add(self.trial, epoch, state)
        target = self.write(epoch, bundle.freeze())
        self.sync()
        return target

    def write(self, epoch: int, snapshot: Snapshot, ranking: Sequence[int] = ()) -> Path:
        """Save a snapshot that contains this trial's state as the checkpoint of `epoch`, without `sync`.

        Of the epochs in `ranking`, best first, the first that has a checkpoint keeps it.
        """
        target = self._own(epoch)
        with self._aside() as aside:
            snapshot.write(aside / target.name)
            (aside / target.name).replace(target)
        self.retain(epoch, ranking)
        return target

    def sync(self) -> None:
        """Sync the folder; before this, its new names may not survive a power failure."""
        sync_folder(self._folder)

    def link(self, epoch: int, file: Path, ranking: Sequence[int] = ()) -> None:
        """Use a file with this trial's state as the checkpoint of `epoch`, by a hard link; otherwise as `write`.

        Raises:
            OSError: the file system has no hard links, or the file has too many.
        """
        target = self._own(epoch)
        try:
            os.link(file, target)
        except FileNotFoundError:
            self._folder.mkdir(parents=True, exist_ok=True)
            os.link(file, target)
        except FileExistsError:  # the epoch was trained again after an interruption
            with self._aside() as aside:
                os.link(file, aside / target.name)
                (aside / target.name).replace(target)
        self.retain(epoch, ranking)

    def load(self, epoch: int) -> dict[str, Any]:
        """Return the state saved for `epoch`, with its tensors on the CPU.

        Raises:
            CheckpointError: there is none, or its file is damaged or holds another state.
            NewerCheckpointError, OSError, MemoryError: as `bundle.read_state`.
        """
        return read_state(self.path(epoch), self.trial, epoch)

    def read_snapshot(self, epoch: int) -> Snapshot | None:
        """Return the state saved for `epoch`, alone and ready to be written elsewhere; None if it was dropped.

        Raises:
            CheckpointError, OSError, MemoryError: it can't be read.
        """
        try:
            state = self.load(epoch)
        except CheckpointError:
            if epoch in self.epochs():
                raise
            return None
        bundle = Bundle()
        bundle.add(self.trial, epoch, state)
        return bundle.freeze()

    def epochs(self) -> list[int]:
        """Return the epochs that have a checkpoint, oldest first."""
        return sorted(self._valid())

    def newest(self) -> Name | None:
        """Return the name of the newest checkpoint, readable or not; None if there is none."""
        return max(self._valid().values(), default=None)

    def load_newest(self) -> dict[str, Any] | None:
        """Return the newest undamaged state, or None if there is no checkpoint. Remove newer damaged ones.

        For the process that saves here; `read_newest` is for others. From then on no checkpoint counts that a job of an
        earlier generation writes.

        Raises:
            CheckpointError: there are checkpoints, but all are damaged.
            NewerCheckpointError, OSError, MemoryError: as `load`; nothing is removed.
        """
        found = self._newest_undamaged()
        if found is None:
            return None
        epoch, state, damaged = found
        for newer in damaged:
            self.drop(newer)
        self._adopt(epoch)
        return state

    def read_newest(self) -> dict[str, Any] | None:
        """Return the state as `load_newest` does, and change nothing."""
        found = self._newest_undamaged()
        return None if found is None else found[1]

    def drop(self, epoch: int) -> None:
        """Remove the checkpoint of an epoch."""
        self.path(epoch).unlink()
        self._saved = None

    def clear(self) -> None:
        """Remove all checkpoints."""
        while epochs := self.epochs():
            for epoch in epochs:
                self.drop(epoch)

    def retain(self, epoch: int, ranking: Sequence[int]) -> None:
        """Drop the checkpoints that are no longer needed now that `epoch` has one, and what killed processes left."""
        if self._saved is None:
            names = self._names()
            self._saved = {name for name in parse(names, self._ending) if name.generation <= self._generation}
            for name in names:
                if name.startswith(_ASIDE):  # left by a process that was killed while saving
                    shutil.rmtree(self._folder / name)
        there = {*self._saved, Name(self._generation, epoch)}
        counting = valid(there)
        kept = {counting[one] for one in retained(counting, self._keep, ranking)}
        for old in there - kept:
            (self._folder / old.file(self._ending)).unlink(missing_ok=True)
        self._saved = kept

    def path(self, epoch: int) -> Path:
        """Return the path of an epoch's checkpoint; if there is none, where it would be saved."""
        name = self._valid().get(epoch)
        return self._own(epoch) if name is None else self._folder / name.file(self._ending)

    def _newest_undamaged(self) -> tuple[int, dict[str, Any], list[int]] | None:
        """Return epoch and state of the newest undamaged checkpoint, and the newer damaged epochs; None without any."""
        damaged: list[int] = []
        for epoch in reversed(self.epochs()):
            try:
                return epoch, self.load(epoch), damaged
            except CheckpointError as error:
                logger.warning("%s", error)
                damaged.append(epoch)
                last = error
        if damaged:
            raise last
        return None

    def _own(self, epoch: int) -> Path:
        """Return the path where an epoch's checkpoint is saved."""
        return self._folder / Name(self._generation, epoch).file(self._ending)

    def _valid(self) -> dict[int, Name]:
        return valid(parse(self._names(), self._ending)) if self._folder.is_dir() else {}

    def _adopt(self, epoch: int) -> None:
        """Make a checkpoint of an earlier generation one of this generation."""
        if self._valid()[epoch].generation < self._generation:
            self.path(epoch).replace(self._own(epoch))
            self._saved = None

    @contextmanager
    def _aside(self) -> Iterator[Path]:
        self._folder.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=_ASIDE, dir=self._folder) as aside:
            yield Path(aside)

    def _names(self) -> list[str]:
        return os.listdir(self._folder)  # noqa: PTH208  # called often, and iterdir takes three times as long


def retained(epochs: Collection[int], keep: int, ranking: Sequence[int]) -> set[int]:
    """Return the epochs to keep: the `keep` newest, and the first in `ranking` (best first) that is among `epochs`."""
    best = next((epoch for epoch in ranking if epoch in epochs), None)
    return {*sorted(epochs)[-keep:], *([] if best is None else [best])}
