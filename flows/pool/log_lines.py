"""What a program writes to its log, for Prefect's log."""

from pathlib import Path

from nasflow.clean_text import clean_text

_MOST = 40  # lines at a time
_BYTES = 2**14


class LogLines:
    """Reads what is appended to a file from now on.

    Args:
        file: it need not exist yet.
    """

    def __init__(self, file: Path):
        self._file = file
        self._offset = self._size()

    def new(self) -> str:
        """Return the lines appended since the last call; of many, only the last ones."""
        size = self._size()
        if size <= self._offset:
            return ""
        begin = max(self._offset, size - _BYTES)
        with self._file.open("rb") as log:
            log.seek(begin)
            lines = log.read(size - begin).decode(errors="replace").splitlines()
        cut = begin > self._offset or len(lines) > _MOST
        self._offset = size
        note = [f"(earlier lines are in {self._file})"] if cut else []
        return clean_text("\n".join([*note, *lines[-_MOST:]]))

    def _size(self) -> int:
        return self._file.stat().st_size if self._file.exists() else 0
