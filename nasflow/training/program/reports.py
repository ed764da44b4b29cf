"""What a trial's program has reported, by epoch, from the file to which its processes append, one after the other."""

import contextlib
import json
from collections.abc import Callable
from pathlib import Path

from nasflow.errors import TrialError
from nasflow.job.events import read_lines
from nasflow.job.reports import METRICS, parse_report

_BEGINS = "nasflow begins a process"
_FIRST = f'{{"{_BEGINS}":'


class Reports:
    """Reads the file as it grows; of an epoch that is reported again, the first report counts.

    A line says which epoch it is of, or is of the next one of its process, which begins with the first. A process that
    found checkpoints when it began has to say it, because it may go on anywhere.

    Args:
        file: kept from one process of the trial to the next, also if that is of another job.
        waits: whether the program waits for an answer after each report; then a second one of an epoch is refused, to
            which there is none.
    """

    def __init__(self, file: Path, waits: bool = False):
        self._file, self._waits = file, waits
        self._head = b""  # how the file begins, if programs append to it
        self._offset = 0
        self._next = 1
        self._goes_on = False
        self._known: dict[int, dict[str, float]] = {}
        self._seen: set[int] = set()

    def begin(self, goes_on: bool) -> None:
        """Note that a process begins; `goes_on` says whether it finds checkpoints."""
        self.end()
        with self._file.open("ab") as file:
            file.truncate(len(_read(self._file)) - len(self._torn()))  # a killed process may have left that
            file.write(json.dumps({_BEGINS: goes_on}).encode() + b"\n")
        self._head = _read(self._file, len(_FIRST))

    def end(self) -> None:
        """Note that the process has ended: its last report counts also if its line has no end."""
        torn = self._torn()
        with contextlib.suppress(ValueError):  # what is left of one that was killed while it wrote
            if torn and parse_report(torn.decode(errors="replace")):
                with self._file.open("ab") as file:
                    file.write(b"\n")

    def take(self, epoch: int, again: Callable[[], None] | None = None) -> dict[str, float] | None:
        """Return what was reported of an epoch; None if nothing was yet.

        Args:
            again: called for each report of an earlier epoch.

        Raises:
            TrialError: the program has reported something else, passed this epoch over, or overwritten the file.
        """
        while epoch not in self._known:
            lines, self._offset = self._read_lines()
            if not lines:
                break
            for line in lines:
                number = self._note(line)
                if again is not None and number is not None and number < epoch:
                    again()
        found = self._known.pop(epoch, None)
        later = min((known for known in self._known if known > epoch), default=None)
        if found is None and later is not None:
            raise TrialError(
                f"the program reported epoch {later}, but never epoch {epoch}; report an epoch before you "
                "save its checkpoint, so that no report is lost"
            )
        return found

    def _read_lines(self) -> tuple[list[str], int]:
        found: tuple[list[str], int] = [], self._offset
        with contextlib.suppress(OSError):
            found = read_lines(self._file, self._offset)
        if _read(self._file, len(self._head)) != self._head:
            raise TrialError(
                f"the program has overwritten or removed the file that {METRICS} names; append to it, as by "
                "open(..., 'a') in Python or >> in a shell"
            )
        return found

    def _torn(self) -> bytes:
        return _read(self._file).rpartition(b"\n")[2]

    def _note(self, line: str) -> int | None:
        """Return the epoch of a line, if it is a report."""
        if not line.strip():
            return None
        if line.startswith(_FIRST):
            self._next, self._goes_on = 1, bool(json.loads(line)[_BEGINS])
            return None
        try:
            epoch, metrics = parse_report(line)
        except ValueError as error:
            raise TrialError(f"the program reported a line that can't be used: {error}") from None
        if epoch is None and self._goes_on:
            raise TrialError(
                "the program goes on from checkpoints, so its reports have to say of which epoch they are; add "
                f"'epoch', a whole number from 1 on, to this one: {line[:80]}"
            )
        number = epoch or self._next
        self._next = number + 1
        if self._waits and number in self._seen:
            raise TrialError(
                f"epoch {number} was reported twice: several processes call 'report', and each counts its own epochs; "
                "call it in one process only, the function's own or one that it starts"
            )
        self._seen.add(number)
        self._known.setdefault(number, metrics)
        return number


def _read(file: Path, most: int = -1) -> bytes:
    try:
        with file.open("rb") as opened:
            return opened.read(most)
    except OSError:  # what a program has done to it, `take` tells
        return b""
