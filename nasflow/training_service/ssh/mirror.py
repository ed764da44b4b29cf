"""Copies files between a host and the controller.

The events here are always a prefix of the host's, in whole lines, and each event arrives after the checkpoints it
reports. So if the host is lost, the job can continue elsewhere from the files here.
"""

import os
import secrets
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath

import paramiko

from nasflow.errors import ServiceError
from nasflow.job.spec import JobSpec, job_dir, trial_dir
from nasflow.training_service.files.incoming import (
    CHECKPOINT,
    drop_checkpoints,
    manifest_digest,
    manifest_of,
    may_come,
    place_links,
)
from nasflow.training_service.ssh.messages import JobNews, RemoteFile, Upload


class Mirror:
    """A study's root folder here and on one host.

    Args:
        root: the study's folder here.
        remote: the study's folder on the host.
        progressed: called often while a file is sent or fetched.
    """

    def __init__(self, root: Path, remote: PurePosixPath, progressed: Callable[[], None]):
        self._root = root
        self._remote = remote
        self._progressed = progressed

    def wanted(self, files: Iterable[RemoteFile], folders: Collection[str]) -> list[RemoteFile]:
        """Return the files that may be copied here, because hosts are not trusted: those in these folders.

        Args:
            folders: relative to the root; in those of trials only checkpoints are wanted.
        """
        named = [file for file in files if may_come(PurePosixPath(file.path), folders)]
        return [file for file in named if not self._place(file.path).is_dir()]

    def download(self, sftp: paramiko.SFTPClient, files: Iterable[RemoteFile]) -> bool:
        """Copy files that are not here yet. Hard links are kept.

        Returns:
            False if one of them is gone, replaced by newer ones.
        """
        listed = {file.path: file for file in files}
        others = {path for path in listed if self._is_other(path, listed)}
        for path in others:
            if listed[path].digest:  # with its manifest, the parts of an epoch that is replaced no longer count
                self._place(path).unlink(missing_ok=True)
        names: dict[int, list[RemoteFile]] = defaultdict(list)
        for file in sorted(listed.values(), key=lambda file: bool(file.digest)):  # manifests come last
            names[file.inode].append(file)
        return all(self._download_one(sftp, group, others) for group in names.values())

    def drop_old(self, files: Sequence[RemoteFile]) -> None:
        """Remove the checkpoints here that are not among the host's `files`. If the host has none, all are kept."""
        drop_checkpoints(self._root, [str(self._place(file.path)) for file in files])

    def append(self, job_id: str, news: JobNews) -> None:
        """Append to a job's events and log."""
        for name, text in ("events.jsonl", news.events), ("job.log", news.log):
            if text:
                with (job_dir(self._root, job_id) / name).open("ab") as file:
                    file.write(text.encode("latin-1"))

    def upload(self, sftp: paramiko.SFTPClient, trials: Sequence[int], there: Sequence[RemoteFile]) -> list[Upload]:
        """Send the trials' checkpoints that are not among the files `there`; the agent then puts them in place."""
        present = {file.path: file for file in there}
        names: dict[int, list[str]] = defaultdict(list)
        for trial in trials:
            folder = trial_dir(self._root, trial)
            files = sorted(folder.iterdir()) if folder.is_dir() else []
            for file in sorted(files, key=lambda file: manifest_of(file.name) == file.name):  # manifests come last
                name = str(file.relative_to(self._root))
                if not CHECKPOINT.fullmatch(file.name):
                    continue  # what a process killed while saving has left
                known = present.get(name)
                if known is None or known.size != file.stat().st_size or self._is_other(name, present):
                    names[file.stat().st_ino].append(name)
        uploads = []
        for paths in names.values():
            incoming = f"incoming-{secrets.token_hex(8)}"
            sftp.put(str(self._root / paths[0]), str(self._remote / incoming), lambda *_: self._progressed())
            uploads.append(Upload(incoming=incoming, paths=paths))
        return uploads

    def _is_other(self, path: str, there: Mapping[str, RemoteFile]) -> bool:
        """Whether a file that ranks have saved is of another epoch than that of the same name on the host."""
        manifest = manifest_of(PurePosixPath(path).name)
        if manifest is None:
            return False
        place = str(PurePosixPath(path).with_name(manifest))
        return place in there and manifest_digest(self._place(place)) != there[place].digest

    def _download_one(self, sftp: paramiko.SFTPClient, names: Sequence[RemoteFile], others: Collection[str]) -> bool:
        places = {self._place(name.path): name for name in names}
        missing = [place for place, name in places.items() if name.path in others or not _is_there(place, name.size)]
        if not missing:
            return True
        aside = self._root / "ssh" / f"incoming-{secrets.token_hex(8)}"
        try:
            with aside.open("wb") as file:
                try:
                    there = str(self._remote / (names[0].held or names[0].path))
                    sftp.getfo(there, file, lambda *_: self._progressed())
                except FileNotFoundError:
                    return False
                file.flush()
                os.fsync(file.fileno())
            place_links(aside, missing)
        finally:
            aside.unlink(missing_ok=True)
        return True

    def _place(self, path: str) -> Path:
        place = (self._root / path).resolve()
        if not place.is_relative_to(self._root):
            raise ServiceError(f"training_service.hosts: a host sends a file '{path}', which leads out of {self._root}")
        return place


def trial_folders(spec: JobSpec) -> list[str]:
    """Return the folders of a job's members, relative to the root."""
    return [trial_dir(Path(), member.trial).as_posix() for member in spec.members]


def _is_there(place: Path, size: int) -> bool:
    return place.exists() and place.stat().st_size == size
