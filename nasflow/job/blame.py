"""Records which trial's code is executing, for crash attribution.

An exception names its trial; `os._exit` and a segmentation fault do not. So before a trial's code runs, its number is
written to a memory-mapped file. This takes less than a microsecond, and the file outlives the process.
"""

import mmap
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

FILE = "own-code"
"""The file's name in a job's folder."""

_NOBODY = -1
_place: memoryview | None = None


@contextmanager
def told_in(path: Path) -> Iterator[None]:
    """Within this, `running` writes to a file."""
    global _place  # noqa: PLW0603 - one per process
    path.write_bytes(_NOBODY.to_bytes(8, "little", signed=True))
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 8) as mapped:
        _place = memoryview(mapped).cast("q")
        try:
            yield
        finally:
            _place.release()
            _place = None


class _Running:
    def __init__(self, place: memoryview, trial: int):
        self._place, self._trial = place, trial
        self._before = _NOBODY

    def __enter__(self) -> None:
        self._before = self._place[0]
        self._place[0] = self._trial

    def __exit__(self, *_: object) -> None:
        self._place[0] = self._before


def running(trial: int) -> AbstractContextManager[None]:
    """Within this, record that a trial's own code is running."""
    return nullcontext() if _place is None else _Running(_place, trial)


def blamed(path: Path) -> int | None:
    """Return the trial that was running its code when the process that wrote the file ended; None if none was."""
    content = path.read_bytes()
    trial = int.from_bytes(content, "little", signed=True) if len(content) == 8 else _NOBODY
    return None if trial == _NOBODY else trial
