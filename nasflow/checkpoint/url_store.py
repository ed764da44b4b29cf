"""Checkpoints at a URL: any storage that fsspec supports (file, sftp, s3, memory, ...)."""

import contextlib
import hashlib
import json
import logging
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import fsspec

from nasflow.checkpoint.bundle import Bundle, Snapshot, read_state
from nasflow.checkpoint.names import Name, parse, valid
from nasflow.checkpoint.store import retained
from nasflow.config.secret.secret_url import check_folder_url, hide_passwords
from nasflow.errors import CheckpointError

logger = logging.getLogger(__name__)

_MANIFEST = re.compile(r"epoch-(\d+)\.json")


class UrlStore:
    """The checkpoints of one trial below a URL, with the interface of `CheckpointStore`.

    Such storage often can't rename, and may show incomplete files. So each file has a manifest with its size and
    SHA-256, which is written after it. A file without a manifest is ignored; one that does not match is not loaded.

    Args:
        url: the URL of the trial's own folder. The folder's name identifies the trial in files.
        keep: how many of the newest checkpoints are kept.
        generation: of what is saved (`nasflow.checkpoint.names`).
    """

    def __init__(self, url: str, keep: int = 2, generation: int = 0):
        self._url = url
        check_folder_url(url)
        self._files, path = fsspec.core.url_to_fs(url.rstrip("/"))
        self._folder = str(path)
        self._keep = keep
        self._generation = generation

    @property
    def trial(self) -> str:
        """The trial's name in files."""
        return self._folder.rpartition("/")[2]

    def save(self, epoch: int, state: dict[str, Any], ranking: Sequence[int] = ()) -> None:
        """Save `state` (what `packing.pack` takes) as the checkpoint of `epoch`, then drop those not needed."""
        bundle = Bundle()
        bundle.add(self.trial, epoch, state)
        self.write(epoch, bundle.freeze(), ranking)

    def write(self, epoch: int, snapshot: Snapshot, ranking: Sequence[int] = ()) -> None:
        """Save a snapshot of this trial's state alone as the checkpoint of `epoch`; otherwise as `save`."""
        with tempfile.TemporaryDirectory() as folder:
            local = Path(folder) / "state"
            snapshot.write(local)
            data = local.read_bytes()
        manifest = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        self._files.makedirs(self._folder, exist_ok=True)
        name = Name(self._generation, epoch)
        self._files.pipe_file(self._path(name), data)
        self._files.pipe_file(self._manifest(name), json.dumps(manifest).encode())
        there = {name for name in self._names() if name.generation <= self._generation}
        counting = valid(there)
        for old in sorted(there - {counting[one] for one in retained(counting, self._keep, ranking)}):
            self._remove(old)

    def load(self, epoch: int) -> dict[str, Any]:
        """Return the state saved for `epoch`, with its tensors on the CPU.

        Raises:
            CheckpointError: there is none, or it is not what was written.
            NewerCheckpointError: a newer nasflow has written it.
            OSError, or what else the storage raises: it can't be read at present.
        """
        name = valid(self._names()).get(epoch, Name(self._generation, epoch))
        path = self._path(name)
        try:
            manifest = json.loads(self._files.cat_file(self._manifest(name)))
            data = self._files.cat_file(path)
            whole = (len(data), hashlib.sha256(data).hexdigest()) == (manifest["size"], manifest["sha256"])
        except (FileNotFoundError, ValueError, KeyError, TypeError) as error:
            raise self._unreadable(path, error) from error
        if not whole:
            raise self._unreadable(path, "it is not what its manifest says")
        with tempfile.TemporaryDirectory() as folder:
            local = Path(folder) / "state"
            local.write_bytes(data)
            return read_state(local, self.trial, epoch)

    def epochs(self) -> list[int]:
        """Return the epochs that have a checkpoint, oldest first."""
        return sorted(valid(self._names()))

    def newest(self) -> Name | None:
        """Return the name of the newest checkpoint, readable or not; None if there is none."""
        return max(valid(self._names()).values(), default=None)

    def load_newest(self) -> dict[str, Any] | None:
        """Return the newest readable state, or None if there is none."""
        for epoch in reversed(self.epochs()):
            try:
                return self.load(epoch)
            except CheckpointError as error:
                logger.warning("%s", error)
        return None

    def drop(self, epoch: int) -> None:
        """Remove the checkpoint of an epoch."""
        if (name := valid(self._names()).get(epoch)) is not None:
            self._remove(name)

    def _names(self) -> set[Name]:
        self._files.invalidate_cache()
        try:
            paths = self._files.ls(self._folder, detail=False)
        except FileNotFoundError:
            return set()
        return parse((str(path).rpartition("/")[2] for path in paths), "json")

    def _remove(self, name: Name) -> None:
        for path in (self._manifest(name), self._path(name)):
            with contextlib.suppress(FileNotFoundError):
                self._files.rm_file(path)

    def _unreadable(self, path: str, why: object) -> CheckpointError:
        return CheckpointError(hide_passwords(f"checkpoint {path} can't be read: {why}", self._url))

    def _path(self, name: Name) -> str:
        return f"{self._folder}/{name.file()}"

    def _manifest(self, name: Name) -> str:
        return f"{self._folder}/{name.file('json')}"
