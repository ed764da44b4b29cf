"""The objects by which controller and node exchange files: a header in JSON, and then the bytes that it announces."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, BinaryIO, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from nasflow.training_service.base import JobState

_LONGEST_HEADER = 2**24  # bytes
_COPIED = 2**20  # bytes at a time
_Size = Annotated[int, Field(ge=0, lt=2**62)]


class UnfinishedError(ValueError):
    """An object that is shorter or longer than it announces: it is still being written."""


class File(BaseModel):
    """A file and its names (hard links), relative to the root."""

    model_config = ConfigDict(frozen=True)

    paths: list[str] = Field(min_length=1)
    size: _Size


class Header(BaseModel):
    """Base class of headers. The bytes of `files` follow, in this order."""

    model_config = ConfigDict(frozen=True)

    files: list[File] = []

    @property
    def sizes(self) -> list[int]:
        """The sizes of all that follows."""
        return [file.size for file in self.files]


class Input(Header):
    """What a run needs: its `job.json` and the checkpoints of its members.

    Attributes:
        version: of nasflow.
        code: the digest of the user's code.
    """

    version: str
    code: str = Field(pattern=r"^[0-9a-f]{32}$")


class Part(Header):
    """What a run has written since the part before. Its event lines and its log follow, and then its files.

    Attributes:
        events_at: bytes of event lines in the parts before; `log_at` likewise.
        events: bytes of whole event lines; `log` likewise of the log.
        checkpoints: all checkpoints of the job's members.
        exit: how the run ended; None before that.
    """

    events_at: _Size
    events: _Size
    log_at: _Size
    log: _Size
    checkpoints: list[str] = []
    exit: JobState | None = None

    @property
    def sizes(self) -> list[int]:  # noqa: D102
        return [self.events, self.log, *super().sizes]


class Control(BaseModel):
    """Orders to a run, kept in a separate object.

    Attributes:
        ends: whether it is to end.
        stop: trials to end after their present epoch.
        beat: changes as long as a controller calls.
    """

    model_config = ConfigDict(frozen=True)

    ends: bool = False
    stop: list[int] = []
    beat: int = 0


H = TypeVar("H", bound=Header)


def write(target: Path, header: Header, content: Sequence[bytes | BinaryIO]) -> None:
    """Write an object. Of each file in `content` as many bytes are taken as the header announces."""
    text = header.model_dump_json().encode()
    with target.open("wb") as file:
        file.write(len(text).to_bytes(8, "big") + text)
        for source, size in zip(content, header.sizes, strict=True):
            if isinstance(source, bytes):
                file.write(source)
            else:
                copy(source, file, size)


def read_header(file: BinaryIO, kind: type[H]) -> H:
    """Read the header of an object.

    Raises:
        UnfinishedError: the object is not whole.
        ValueError: it is not what it should be.
    """
    size = os.fstat(file.fileno()).st_size
    length = int.from_bytes(file.read(8), "big")
    if length > _LONGEST_HEADER:
        raise ValueError(f"its header has {length:,} bytes")
    if size < 8 + length:
        raise UnfinishedError("it ends within its header")
    header = kind.model_validate_json(file.read(length))
    if size != 8 + length + sum(header.sizes):
        raise UnfinishedError("it does not have the size that it announces")
    return header


def copy(source: BinaryIO, target: BinaryIO, size: int) -> None:
    """Copy as many bytes. Raises UnfinishedError if there are fewer."""
    while size:
        data = source.read(min(size, _COPIED))
        if not data:
            raise UnfinishedError("a file became shorter while it was copied")
        target.write(data)
        size -= len(data)


def unpack_file(source: BinaryIO, file: File, aside: Path) -> None:
    """Write a file's content to `aside` and sync it. A file that has that name keeps its content under others."""
    aside.unlink(missing_ok=True)
    with aside.open("wb") as target:
        copy(source, target, file.size)
        target.flush()
        os.fsync(target.fileno())
