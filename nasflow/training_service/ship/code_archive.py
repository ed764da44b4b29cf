"""How shipped code is hashed and unpacked.

An archive is a tar.gz that holds regular files and nothing else: no folders, links, or devices.

This imports the standard library only, none of nasflow, for it is also a program for hosts that have no nasflow yet:
`python code_archive.py ARCHIVE FOLDER DIGEST`, or with `-` in the place of its name and its text on standard input. It
prints where the code lies, or why it does not and exits with 1.
"""

import gzip
import hashlib
import io
import os
import shutil
import sys
import tarfile
import tempfile
import zlib
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import BinaryIO


class ArchiveError(Exception):
    """An archive that is not what it should be; nothing was unpacked."""


def file_digest(file: io.BufferedReader | io.BufferedRandom) -> bytes:
    """The hash of a file's bytes."""
    return hashlib.file_digest(file, _hash).digest()


def tree_digest(files: Iterable[tuple[str, bool, bytes]]) -> str:
    """The hash, 32 hex digits, of files given by relative path, whether they are executable, and `file_digest`."""
    tree = _hash()
    for path, executable, content in sorted(files):
        name = os.fsencode(path)
        tree.update(b"%d %s %d " % (len(name), name, executable) + content)
    return tree.hexdigest()


def unpack(archive: BinaryIO, folder: Path, digest: str) -> Path:
    """Unpack an archive into `folder/digest`, unless that is there already.

    The place is either there as a whole or not at all, whoever else unpacks the same, and whenever this is killed.

    Args:
        archive: the tar.gz, read from where it stands.
        folder: where archives are unpacked, each in a folder of its own; made if it is missing.
        digest: `tree_digest` of what must be in it.

    Returns:
        The place.

    Raises:
        ArchiveError: the archive is damaged, holds something else than `digest` says, a path that leads out of it, or
            anything but regular files.
        OSError: it can't be written there.
    """
    place = folder / digest
    if place.is_dir():
        return place
    folder.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(prefix=f".{digest}.", dir=folder))
    try:
        found = _unpack(archive, aside)
        if found != digest:
            raise ArchiveError(f"the archive holds {found}, not {digest}: its files changed while they were packed")
        aside.chmod(0o755)
        try:
            aside.rename(place)
        except OSError:
            if not place.is_dir():  # else another was faster
                raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return place


def _unpack(archive: BinaryIO, folder: Path) -> str:
    files = []
    try:
        with tarfile.open(fileobj=archive, mode="r:gz") as tar:
            for member in tar:
                files.append((member.name, *_unpack_file(tar, member, folder)))
    except (
        tarfile.TarError,
        gzip.BadGzipFile,
        zlib.error,
        EOFError,
        ValueError,
        FileExistsError,
        NotADirectoryError,
    ) as error:
        raise ArchiveError(f"the archive is damaged: {error}") from error
    return tree_digest(files)


def _unpack_file(tar: tarfile.TarFile, member: tarfile.TarInfo, folder: Path) -> tuple[bool, bytes]:
    """Not by tarfile's filters: Python has them from 3.11.4 on only, and here is less to be allowed."""
    path = PurePosixPath(member.name)
    if path.is_absolute() or ".." in path.parts or not path.parts or "\0" in member.name:
        raise ArchiveError(f"the archive holds '{member.name}', which leads out of it")
    source = tar.extractfile(member) if member.isreg() else None
    if source is None:
        raise ArchiveError(f"the archive holds '{member.name}', which is no regular file")
    place = folder / path
    place.parent.mkdir(parents=True, exist_ok=True)
    with source, place.open("x+b") as target:
        shutil.copyfileobj(source, target)
        executable = bool(member.mode & 0o100)
        place.chmod(0o755 if executable else 0o644)
        target.seek(0)
        return executable, file_digest(target)


def _hash() -> "hashlib.blake2b":
    return hashlib.blake2b(digest_size=16)


if __name__ == "__main__":
    try:
        with open(sys.argv[1], "rb") as packed:  # noqa: PTH123  # like the rest of a small program
            sys.stdout.write(f"{unpack(packed, Path(sys.argv[2]), sys.argv[3])}\n")
    except (ArchiveError, OSError) as problem:
        sys.exit(str(problem))
