"""Hashes and unpacks shipped code.

An archive is a tar.gz that holds regular files and nothing else: no folders, links, or devices.

This imports the standard library only, because it is also a program for hosts without nasflow: `python code_archive.py
ARCHIVE FOLDER DIGEST`, or `python - ...` with its text on standard input. It prints the folder of the code, or prints
what went wrong and exits with 1.
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

_MOST_FOLDERS = 100
_MOST_AT_ONCE = 2**17  # bytes


class ArchiveError(Exception):
    """An archive that is not what it should be; nothing was unpacked."""


def file_digest(file: io.BufferedReader | io.BufferedRandom | io.BytesIO) -> bytes:
    """Return the hash of a file's bytes."""
    return hashlib.file_digest(file, _hash).digest()


def tree_digest(files: Iterable[tuple[str, bool, bytes]]) -> str:
    """Return the hash (32 hex digits) of files given as relative path, whether executable, and `file_digest`."""
    tree = _hash()
    for path, executable, content in sorted(files):
        name = os.fsencode(path)
        tree.update(b"%d %s %d " % (len(name), name, executable) + content)
    return tree.hexdigest()


def unpack(archive: BinaryIO, folder: Path, digest: str) -> Path:
    """Unpack an archive into `folder/digest`, unless that exists.

    This is atomic, even if others unpack the same archive at the same time or this process is killed. Nobody but the
    user can read what is unpacked, because some of it could not be read by others where it came from.

    Args:
        archive: the tar.gz, read from its current position.
        folder: where archives are unpacked, each in its own folder; created if missing.
        digest: `tree_digest` of the expected content.

    Returns:
        The folder of the content.

    Raises:
        ArchiveError: the archive is damaged, does not match `digest`, or holds a path that leads out of it or
            anything but regular files.
        OSError: the folder can't be written.
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
        try:
            aside.rename(place)
        except OSError:
            if not place.is_dir():  # another process may have been faster
                raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return place


def _unpack(archive: BinaryIO, folder: Path) -> str:
    files = []
    try:
        with _Forward(fileobj=archive) as content, tarfile.open(fileobj=content, mode="r:") as tar:
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
        RecursionError,  # tarfile reads a header of a header by calling itself
    ) as error:
        raise ArchiveError(f"the archive is damaged: {error}") from error
    return tree_digest(files)


def _unpack_file(tar: tarfile.TarFile, member: tarfile.TarInfo, folder: Path) -> tuple[bool, bytes]:
    """Unpack one file, without tarfile's filters: they need Python 3.11.4 and allow more than is wanted here."""
    path = PurePosixPath(member.name)
    if path.is_absolute() or ".." in path.parts or not path.parts or "\0" in member.name:
        raise ArchiveError(f"the archive holds {member.name!r}, which leads out of it")
    if len(path.parts) > _MOST_FOLDERS:
        raise ArchiveError(f"the archive holds {member.name[:40]!r}..., which is too deep in folders")
    source = tar.extractfile(member) if member.isreg() and not member.issparse() else None
    if source is None:
        raise ArchiveError(f"the archive holds {member.name!r}, which is no regular file")
    place = folder / path
    place.parent.mkdir(parents=True, exist_ok=True)
    with source, place.open("x+b") as target:
        shutil.copyfileobj(source, target, _MOST_AT_ONCE)
        executable = bool(member.mode & 0o100)
        place.chmod(0o700 if executable else 0o600)
        target.seek(0)
        return executable, file_digest(target)


class _Forward(gzip.GzipFile):
    """An archive's content, as tarfile reads it: in one direction, and little at a time.

    A header may claim to have any size, even a negative one, and tarfile would read that much, or go back, for ever.
    """

    def read(self, size: "int | None" = -1) -> bytes:
        """Return the next bytes."""
        if size is None or not 0 <= size <= _MOST_AT_ONCE:
            raise ArchiveError(f"the archive has a header of {size or 0:,} bytes")
        return super().read(size)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go on to a place."""
        if whence == io.SEEK_SET and offset < self.tell():
            raise ArchiveError("the archive has a header that leads back")
        return super().seek(offset, whence)


def _hash() -> "hashlib.blake2b":
    return hashlib.blake2b(digest_size=16)


if __name__ == "__main__":
    try:
        with open(sys.argv[1], "rb") as packed:  # noqa: PTH123  # like the rest of a small program
            sys.stdout.write(f"{unpack(packed, Path(sys.argv[2]), sys.argv[3])}\n")
    except (ArchiveError, OSError) as problem:
        sys.exit(str(problem))
