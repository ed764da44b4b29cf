"""Sends what a run writes on its node, in numbered parts, while it trains."""

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO

from nasflow.job import activity
from nasflow.job.disk_full import is_full
from nasflow.job.spec import JobSpec, job_dir, trial_dir
from nasflow.training_service.base import JobState
from nasflow.training_service.cluster.runs import Run
from nasflow.training_service.cluster.storage import parcel
from nasflow.training_service.cluster.storage.base import StorageSilentError
from nasflow.training_service.cluster.storage.bucket import Bucket
from nasflow.training_service.cluster.storage.parcel import File, Part
from nasflow.training_service.files.incoming import CHECKPOINT, KEPT

_QUIET = 0.2  # seconds without a new event after which a part is sent, so that one has the events of all members
_LONGEST_WAIT = 1.0  # seconds for that
_MOST_EVENTS = 2**24  # bytes in a part
_MOST_LOG = 2**18  # bytes in a part; of more, the last
_LARGEST_FILE = 2**26  # bytes; of a file in the job's own folder
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 20.0  # seconds between two attempts


class Sender:
    """Makes parts of what is new in a run's files, and sends them; one that was not accepted is sent again as it was.

    Args:
        bucket: the storage; the parts are at `place` in it.
        log_seconds: between two parts that have no event, but only lines of the log or files of the job.
    """

    def __init__(self, bucket: Bucket, place: str, run: Run, spec: JobSpec, log_seconds: float):
        self._bucket, self._place, self._run = bucket, place, run
        self._folder = job_dir(run.root, run.job_id)
        self._trials = [trial_dir(run.root, member.trial) for member in spec.members]
        self._log_seconds = log_seconds
        self._aside = run.root / "part"
        self._number = self._events = self._log = self._log_sent = 0
        self._sent: dict[str, tuple[int, int, int]] = {}
        self._ready: Part | None = None
        self._sent_at = time.monotonic()
        self._retry_at, self._pause = 0.0, 0.0
        self._size, self._grew_at, self._waits_since = 0, 0.0, 0.0
        self.final_sent = False

    def note_here(self) -> None:
        """Count what is in the folders now as sent: the job's checkpoints came from the controller."""
        for path in self._checkpoints():
            self._sent[str(path.relative_to(self._run.root))] = _identity(path)

    def send_new(self) -> None:
        """Send a part if it is time. A storage that does not answer is tried again by a later call."""
        now = time.monotonic()
        if self._ready is None and now >= self._retry_at and self._is_time(now):
            self._make_if_there_is_room(None)
        self._try(now)

    def send_last(self, state: JobState) -> None:
        """Send the rest, and how the run ended. Call this until `final_sent`."""
        if self._ready is None and time.monotonic() >= self._retry_at:
            last = self._size_of("events.jsonl") - self._events <= _MOST_EVENTS
            self._make_if_there_is_room(state if last else None)
        self._try(time.monotonic())

    def _is_time(self, now: float) -> bool:
        size = self._size_of("events.jsonl")
        if size > self._events:
            if size != self._size:
                self._waits_since = now if self._size <= self._events else self._waits_since
                self._size, self._grew_at = size, now
            return now - self._grew_at >= _QUIET or now - self._waits_since >= _LONGEST_WAIT
        if now - self._sent_at < self._log_seconds:
            return False
        return self._size_of("job.log") > self._log or any(self._new_files())

    def _try(self, now: float) -> None:
        if self._ready is None or now < self._retry_at:
            return
        try:
            self._bucket.put(self._aside, f"{self._place}/{self._number:08d}")
        except (StorageSilentError, FileNotFoundError):
            self._wait()
            return
        self.final_sent = self._ready.exit is not None
        self._number, self._ready = self._number + 1, None
        self._pause, self._sent_at = 0.0, time.monotonic()

    def _wait(self) -> None:
        """Let the next attempt come later, the more of them have failed."""
        self._pause = min(max(2 * self._pause, _FIRST_PAUSE), _LONGEST_PAUSE)
        self._retry_at = time.monotonic() + self._pause

    def _make_if_there_is_room(self, state: JobState | None) -> None:
        """Write the next part to disk. If that is full, nothing counts as sent, and a later call tries again."""
        try:
            self._make(state)
        except OSError as error:
            if not is_full(error):
                raise
            self._aside.unlink(missing_ok=True)  # the job may need the room
            self._wait()

    def _make(self, state: JobState | None) -> None:
        """Write the next part to disk. Events are read first: the checkpoints that they report are there by then."""
        events = _read(self._folder / "events.jsonl", self._events, _MOST_EVENTS)
        if len(events) < _MOST_EVENTS or b"\n" in events:
            events = events[: events.rfind(b"\n") + 1]
        log_size = self._size_of("job.log")
        log = _read(self._folder / "job.log", max(self._log, log_size - _MOST_LOG), _MOST_LOG)
        with ExitStack() as stack:
            files: list[File] = []
            content: list[bytes | BinaryIO] = [events, log]
            identities: dict[str, tuple[int, int, int]] = {}
            self._add_checkpoints(stack, files, content, identities)
            for path in [*self._new_files(), self._folder / activity.FILE]:
                try:
                    identity = _identity(path)
                    data = path.read_bytes() if identity[2] <= _LARGEST_FILE else None
                except FileNotFoundError:  # it was removed or renamed meanwhile
                    continue
                if data is not None:
                    identities[self._name(path)] = identity
                    files.append(File(paths=[self._name(path)], size=len(data)))
                    content.append(data)
            part = Part(
                files=files,
                events_at=self._events,
                events=len(events),
                log_at=self._log_sent,
                log=len(log),
                checkpoints=[self._name(path) for path in self._checkpoints()],
                exit=state,
            )
            parcel.write(self._aside, part, content)
        self._sent |= identities
        self._events += len(events)
        self._log, self._log_sent = max(log_size, self._log), self._log_sent + len(log)
        self._ready = part

    def _add_checkpoints(
        self,
        stack: ExitStack,
        files: list[File],
        content: list[bytes | BinaryIO],
        identities: dict[str, tuple[int, int, int]],
    ) -> None:
        """Add the checkpoints that have not been sent; one that is dropped meanwhile is left out."""
        names: dict[tuple[int, int, int], list[str]] = {}
        opened: dict[tuple[int, int, int], BinaryIO] = {}
        for path in self._checkpoints():
            try:
                file = stack.enter_context(path.open("rb"))
            except FileNotFoundError:
                continue
            about = os.fstat(file.fileno())
            identity = (about.st_ino, about.st_mtime_ns, about.st_size)
            if self._sent.get(self._name(path)) != identity:
                names.setdefault(identity, []).append(self._name(path))
                opened.setdefault(identity, file)
                identities[self._name(path)] = identity
        for identity, paths in names.items():
            files.append(File(paths=paths, size=identity[2]))
            content.append(opened[identity])

    def _checkpoints(self) -> Sequence[Path]:
        paths = [path for folder in self._trials if folder.is_dir() for path in sorted(folder.iterdir())]
        return [path for path in paths if CHECKPOINT.fullmatch(path.name)]

    def _new_files(self) -> Iterator[Path]:
        """Yield the files in the job's own folder that were not sent as they are."""
        for path in sorted(self._folder.iterdir()):
            if path.name in KEPT or path.name == activity.FILE or path.is_symlink() or not path.is_file():
                continue
            try:
                new = self._sent.get(self._name(path)) != _identity(path)
            except FileNotFoundError:  # as each file that is written aside and renamed
                continue
            if new:
                yield path

    def _name(self, path: Path) -> str:
        return str(path.relative_to(self._run.root))

    def _size_of(self, name: str) -> int:
        try:
            return (self._folder / name).stat().st_size
        except FileNotFoundError:
            return 0


def _identity(path: Path) -> tuple[int, int, int]:
    about = path.stat()
    return about.st_ino, about.st_mtime_ns, about.st_size


def _read(path: Path, offset: int, size: int) -> bytes:
    """Return up to `size` bytes of a file from `offset` on."""
    try:
        with path.open("rb") as file:
            file.seek(offset)
            return file.read(size)
    except FileNotFoundError:
        return b""
