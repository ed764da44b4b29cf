"""Copies of a host's files on the controller's side, and the way back.

What is here of a job's events is a beginning of what the host has, in whole lines, and no event is here before the
checkpoints it tells of: whatever becomes of the host, the job goes on elsewhere from what is here.
"""

import contextlib
import os
import secrets
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath

import paramiko

from nasflow.errors import ServiceError
from nasflow.job.spec import job_dir, trial_dir
from nasflow.training_service.ssh.messages import KEPT, JobNews, RemoteFile, Upload


class Mirror:
    """A study's root here, and on one host.

    Args:
        root: the study's folder here.
        remote: the one on the host.
    """

    def __init__(self, root: Path, remote: PurePosixPath):
        self._root = root
        self._remote = remote

    def download(self, sftp: paramiko.SFTPClient, files: Iterable[RemoteFile]) -> bool:
        """Bring files that are not here yet. Several names of one file are that here, too.

        Returns:
            False if one of them has gone: newer ones are there in its place.
        """
        names: dict[int, list[RemoteFile]] = defaultdict(list)
        for file in files:
            names[file.inode].append(file)
        return all(self._download_one(sftp, group) for group in names.values())

    def drop_old(self, files: Sequence[RemoteFile]) -> None:
        """Remove the checkpoints here that the host, which has `files`, has dropped. Where it has none, all stay."""
        kept: dict[Path, set[str]] = defaultdict(set)
        for file in files:
            place = self._place(file.path)
            kept[place.parent].add(place.name)
        for folder, there in kept.items():
            for path in folder.iterdir():
                if path.name not in there:
                    path.unlink()

    def append(self, job_id: str, news: JobNews) -> None:
        """Add to a job's events and log."""
        for name, text in ("events.jsonl", news.events), ("job.log", news.log):
            if text:
                with (job_dir(self._root, job_id) / name).open("ab") as file:
                    file.write(text.encode("latin-1"))

    def upload(self, sftp: paramiko.SFTPClient, trials: Sequence[int], there: Sequence[RemoteFile]) -> list[Upload]:
        """Send the trials' checkpoints that are not among the files `there`, to be put in their places by the agent."""
        present: Mapping[str, int] = {file.path: file.size for file in there}
        names: dict[int, list[str]] = defaultdict(list)
        for trial in trials:
            folder = trial_dir(self._root, trial)
            for file in sorted(folder.iterdir()) if folder.is_dir() else []:
                name = str(file.relative_to(self._root))
                if present.get(name) != file.stat().st_size:
                    names[file.stat().st_ino].append(name)
        uploads = []
        for paths in names.values():
            incoming = f"incoming-{secrets.token_hex(8)}"
            sftp.put(str(self._root / paths[0]), str(self._remote / incoming))
            uploads.append(Upload(incoming=incoming, paths=paths))
        return uploads

    def _download_one(self, sftp: paramiko.SFTPClient, names: Sequence[RemoteFile]) -> bool:
        places = {self._place(name.path): name for name in names}
        missing = [place for place, name in places.items() if not _is_there(place, name.size)]
        if not missing:
            return True
        for place in missing:
            place.parent.mkdir(parents=True, exist_ok=True)
        aside = self._root / "ssh" / f"incoming-{secrets.token_hex(8)}"
        try:
            with aside.open("wb") as file:
                try:
                    sftp.getfo(str(self._remote / names[0].path), file)
                except FileNotFoundError:
                    return False
                file.flush()
                os.fsync(file.fileno())
            for place in missing:
                with contextlib.suppress(FileNotFoundError):
                    place.unlink()
                os.link(aside, place)
        finally:
            aside.unlink(missing_ok=True)
        return True

    def _place(self, path: str) -> Path:
        place = (self._root / path).resolve()
        if not place.is_relative_to(self._root):
            raise ServiceError(f"training_service.hosts: a host sends a file '{path}', which leads out of {self._root}")
        return place


def refuse_others(files: Iterable[RemoteFile], folders: Sequence[str]) -> None:
    """Raise ServiceError if a host names files that were not asked for: what it says is not trusted."""
    for file in files:
        path = PurePosixPath(file.path)
        if ".." in path.parts or path.name in KEPT or not any(path.is_relative_to(folder) for folder in folders):
            raise ServiceError(f"training_service.hosts: a host sends a file '{path}' that was not asked for")


def _is_there(place: Path, size: int) -> bool:
    return place.exists() and place.stat().st_size == size
