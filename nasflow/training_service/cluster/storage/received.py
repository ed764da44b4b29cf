"""Brings what a run on a node has sent into the study's root here. Nodes are not trusted."""

import os
import secrets
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from pydantic import BaseModel, ConfigDict, Field

from nasflow.job.spec import JobSpec, job_dir, trial_dir
from nasflow.system.small_files import read_whole, write_aside
from nasflow.training_service.base import JobState, JobStatus
from nasflow.training_service.cluster.runs import Run
from nasflow.training_service.cluster.storage import parcel
from nasflow.training_service.cluster.storage.parcel import Part
from nasflow.training_service.files.incoming import drop_checkpoints, may_come, place_links

_MOST_FILES = 10_000
_LARGEST_FILE = 2**26  # bytes; of a file in the job's own folder


class RefusedError(ValueError):
    """A part that its node may not send."""


class Received(BaseModel):
    """What is here of a run. It is on record before the object of a part is removed.

    Attributes:
        sender: the process on a node whose parts count; None before its first one.
        parts: how many of them are here.
        events: bytes of the job's events and, likewise, its log, that earlier runs wrote.
    """

    model_config = ConfigDict(frozen=True)

    sender: str | None = None
    parts: int = Field(default=0, ge=0)
    events: int = Field(ge=0)
    log: int = Field(ge=0)


def begin(run: Run) -> None:
    """Note what earlier runs of the job wrote, unless that is on record."""
    if received(run) is None:
        folder = job_dir(run.root, run.job_id)
        start = Received(events=_end_of_lines(folder / "events.jsonl"), log=_end_of_lines(folder / "job.log"))
        write_aside(run.file("received"), start.model_dump_json())


def received(run: Run) -> Received | None:
    """Return what is here of a run; None if it has not been given to the cluster."""
    return read_whole(run.file("received"), Received.model_validate_json)


def take(run: Run, sender: str, file: BinaryIO, spec: JobSpec) -> None:
    """Bring the run's next part here. To do so again, after this process was killed within it, changes nothing.

    The checkpoints come first, so that an event counts only when the checkpoint is here that it reports.

    Raises:
        parcel.UnfinishedError: the part is still being written.
        RefusedError: it is not what this run may send.
        OSError: the disk is full.
    """
    known = received(run)
    if known is None:
        raise RefusedError("the run is not on record")
    try:
        part = parcel.read_header(file, Part)
    except parcel.UnfinishedError:
        raise
    except ValueError as error:
        raise RefusedError(str(error)) from error
    if (known.sender or sender) != sender:
        raise RefusedError("it is of another process than the parts before")
    _check(part, run, spec)
    folder = job_dir(run.root, run.job_id)
    begin_of_content = file.tell()
    file.seek(part.events + part.log, os.SEEK_CUR)
    for each in part.files:
        aside = run.file("incoming")
        parcel.unpack_file(file, each, aside)
        place_links(aside, [run.root / path for path in each.paths])
        aside.unlink()
    drop_checkpoints(run.root, part.checkpoints)
    file.seek(begin_of_content)
    for name, at, size in (
        ("events.jsonl", known.events + part.events_at, part.events),
        ("job.log", known.log + part.log_at, part.log),
    ):
        _insert(folder / name, at, file, size)
    if part.exit is not None:
        run.end(part.exit)
    news = known.model_copy(update={"sender": sender, "parts": known.parts + 1})
    write_aside(run.file("received"), news.model_dump_json())


def refuse(run: Run, why: object) -> None:
    """Record that a run ended because it sent what it may not."""
    text = " ".join(str(why).split())[:300]
    run.end(JobState(status=JobStatus.LOST, reason=f"what its node sent is refused: {text}"))


def new_aside(folder: Path) -> Path:
    """Return the path of a new file for an object."""
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"incoming-{secrets.token_hex(8)}"


def _check(part: Part, run: Run, spec: JobSpec) -> None:
    """Raise RefusedError unless a part holds only what its run may send."""
    own = job_dir(Path(), run.job_id).as_posix()
    trials = {trial_dir(Path(), member.trial).as_posix() for member in spec.members}
    paths = [path for file in part.files for path in file.paths]
    if len(paths) > _MOST_FILES or len(part.checkpoints) > _MOST_FILES:
        raise RefusedError(f"it has {len(paths):,} files")
    for path in paths:
        if not may_come(PurePosixPath(path), trials | {own}) or not _is_free(run.root, path):
            raise RefusedError(f"it has a file {path!r:.100}")
    for path in part.checkpoints:
        if not may_come(PurePosixPath(path), trials):
            raise RefusedError(f"it has a checkpoint {path!r:.100}")
    for file in part.files:
        if file.size > _LARGEST_FILE and any(path.startswith(f"{own}/") for path in file.paths):
            raise RefusedError(f"its file {file.paths[0]!r:.100} has {file.size:,} bytes")
    if part.exit is not None and part.exit.status not in (JobStatus.EXITED, JobStatus.LOST):
        raise RefusedError(f"it says that the run is {part.exit.status}")
    written = {"events.jsonl": part.events_at, "job.log": part.log_at}
    known = received(run)
    for name, at in written.items():
        here = _size(job_dir(run.root, run.job_id) / name)
        before = 0 if known is None else known.events if name == "events.jsonl" else known.log
        if before + at > here:
            raise RefusedError(f"it leaves a gap in {name}")


def _is_free(root: Path, path: str) -> bool:
    """Whether a path stays in the root, and is no folder."""
    place = root / path
    return place.parent.resolve() == root.resolve() / Path(path).parent and not place.is_dir()


def _insert(path: Path, at: int, source: BinaryIO, size: int) -> None:
    """Write bytes at a place in a file; what is there already is the same."""
    if not size:
        return
    path.touch()
    with path.open("r+b") as file:
        file.seek(at)
        parcel.copy(source, file, size)
        file.flush()
        os.fsync(file.fileno())


def _end_of_lines(path: Path) -> int:
    """Return the size of a file, after ending its last line if a process that was killed has not."""
    size = _size(path)
    if size:
        with path.open("r+b") as file:
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                file.write(b"\n")
                size += 1
    return size


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
