"""What a trial's program has reported, by epoch, from the file to which its processes append, one after the other."""

import json
from pathlib import Path

from nasflow.errors import TrialError
from nasflow.job.events import read_lines
from nasflow.job.reports import parse_report

_BEGINS = "nasflow begins a process"


class Reports:
    """Reads the file as it grows; of an epoch that is reported again, the first report counts.

    A line says which epoch it is of, or is of the next one of its process, which begins with the first. A process that
    found checkpoints when it began has to say it, because it may go on anywhere.

    Args:
        file: kept from one process of the trial to the next, also if that is of another job.
        most: epochs that are taken; later ones are ignored.
    """

    def __init__(self, file: Path, most: int):
        self._file, self._most = file, most
        self._offset = 0
        self._next = 1
        self._goes_on = False
        self._known: dict[int, dict[str, float]] = {}

    def begin(self, goes_on: bool) -> None:
        """Note that a process begins; `goes_on` says whether it finds checkpoints."""
        whole = self._file.read_bytes() if self._file.exists() else b""
        with self._file.open("ab") as file:
            file.truncate(whole.rfind(b"\n") + 1)  # a killed process may have left a torn line
            file.write(json.dumps({_BEGINS: goes_on}).encode() + b"\n")

    def take(self, epoch: int) -> dict[str, float] | None:
        """Return what was reported of an epoch; None if nothing was yet.

        Raises:
            TrialError: the program has reported something else, or passed this epoch over.
        """
        while epoch not in self._known:
            lines, self._offset = read_lines(self._file, self._offset)
            if not lines:
                break
            for line in lines:
                self._note(line)
        found = self._known.pop(epoch, None)
        later = min((known for known in self._known if known > epoch), default=None)
        if found is None and later is not None:
            raise TrialError(
                f"the program reported epoch {later}, but never epoch {epoch}; report an epoch before you "
                "save its checkpoint, so that no report is lost"
            )
        return found

    def _note(self, line: str) -> None:
        if line.startswith(f'{{"{_BEGINS}":'):
            self._next, self._goes_on = 1, bool(json.loads(line)[_BEGINS])
            return
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
        if number <= self._most:
            self._known.setdefault(number, metrics)
