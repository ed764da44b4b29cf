"""The checkpoints of one trial: a file an epoch, which other trials of its job may share; nothing is pickled."""

import logging
import os
import re
import shutil
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from nasflow.checkpoint.bundle import Bundle, Snapshot, read_state
from nasflow.errors import CheckpointError

logger = logging.getLogger(__name__)

_EPOCH = re.compile(r"epoch-(\d{4,})\.safetensors")
_ASIDE = ".aside-"


class CheckpointStore:
    """Saves and loads a trial's state by finished epochs; epoch 0 is the state after init.

    A checkpoint is written in a folder aside, synced, and renamed, so that a file with its final name is whole. Older
    ones are removed only after that.

    Args:
        folder: the trial's own folder. The trial goes by its name in files, and only one process saves there.
        keep: how many of the newest checkpoints stay.
    """

    def __init__(self, folder: Path, keep: int = 2):
        self._folder = folder
        self._keep = keep
        self._saved: list[int] | None = None  # epochs that have a checkpoint, once this has saved any

    @property
    def trial(self) -> str:
        """What the trial goes by in files."""
        return self._folder.name

    def save(self, epoch: int, state: dict[str, Any]) -> Path:
        """Save `state` (what `packing.pack` takes) as the checkpoint of `epoch`, then drop the oldest ones."""
        bundle = Bundle()
        bundle.add(self.trial, state)
        target = self.write(epoch, bundle.freeze())
        self.sync()
        return target

    def write(self, epoch: int, snapshot: Snapshot, ranking: Sequence[int] = ()) -> Path:
        """The same with a snapshot that this trial's state is in, but for `sync`.

        Of the epochs of a `ranking`, best first, the first that has a checkpoint keeps it.
        """
        target = self.path(epoch)
        with self._aside() as aside:
            snapshot.write(aside / target.name)
            (aside / target.name).replace(target)
        self._retain(epoch, ranking)
        return target

    def sync(self) -> None:
        """Sync the folder: only then do its new names outlive a loss of power."""
        folder = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def link(self, epoch: int, file: Path, ranking: Sequence[int] = ()) -> None:
        """The same with a file that a bundle with this trial's state was written to: it gets one more name.

        Raises:
            OSError: where there are no hard links, or no more of them.
        """
        target = self.path(epoch)
        try:
            os.link(file, target)
        except FileNotFoundError:
            self._folder.mkdir(parents=True, exist_ok=True)
            os.link(file, target)
        except FileExistsError:  # an epoch trained again after an interruption
            with self._aside() as aside:
                os.link(file, aside / target.name)
                (aside / target.name).replace(target)
        self._retain(epoch, ranking)

    def load(self, epoch: int) -> dict[str, Any]:
        """The state saved for `epoch`, its tensors on the CPU.

        Raises:
            CheckpointError: there is none, or its file can't be read.
        """
        return read_state(self.path(epoch), self.trial)

    def epochs(self) -> list[int]:
        """The epochs that have a checkpoint, oldest first."""
        return _epochs(self._names()) if self._folder.is_dir() else []

    def load_newest(self) -> dict[str, Any] | None:
        """The newest state that can be read, or None when there is no checkpoint; newer unreadable ones are removed.

        Raises:
            CheckpointError: there are some, and none can be read.
        """
        unreadable: list[int] = []
        for epoch in reversed(self.epochs()):
            try:
                state = self.load(epoch)
            except CheckpointError as error:
                logger.warning("%s", error)
                unreadable.append(epoch)
                last = error
                continue
            for newer in unreadable:
                self.drop(newer)
            return state
        if unreadable:
            raise last
        return None

    def drop(self, epoch: int) -> None:
        """Remove the checkpoint of an epoch."""
        self.path(epoch).unlink()
        self._saved = None

    def clear(self) -> None:
        """Remove all checkpoints."""
        for epoch in self.epochs():
            self.drop(epoch)

    def path(self, epoch: int) -> Path:
        """The file of an epoch's checkpoint."""
        return self._folder / f"epoch-{epoch:04d}.safetensors"

    @contextmanager
    def _aside(self) -> Iterator[Path]:
        self._folder.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=_ASIDE, dir=self._folder) as aside:
            yield Path(aside)

    def _names(self) -> list[str]:
        return os.listdir(self._folder)  # noqa: PTH208  # this is done often, and iterdir takes three times as long

    def _retain(self, epoch: int, ranking: Sequence[int]) -> None:
        """Drop what need not be kept now that there is a checkpoint of `epoch`, too."""
        if self._saved is None:
            names = self._names()
            self._saved = _epochs(names)
            for name in names:
                if name.startswith(_ASIDE):  # left by a process that was killed while it saved
                    shutil.rmtree(self._folder / name)
        there = {*self._saved, epoch}
        kept = retained(there, self._keep, ranking)
        for old in there - kept:
            self.path(old).unlink(missing_ok=True)
        self._saved = sorted(kept)


def retained(epochs: Collection[int], keep: int, ranking: Sequence[int]) -> set[int]:
    """Of these epochs, the `keep` newest, and the first that a ranking names, best first."""
    best = next((epoch for epoch in ranking if epoch in epochs), None)
    return {*sorted(epochs)[-keep:], *([] if best is None else [best])}


def _epochs(names: list[str]) -> list[int]:
    return sorted(int(match.group(1)) for match in map(_EPOCH.fullmatch, names) if match)
