"""The terminal that commands write to."""

import logging
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from rich.console import Console

_WIDTH_OF_FILES = 160


def console(stderr: bool = False) -> Console:
    """Return a console. Errors are not wrapped, and output to a file or pipe is wide enough for tables.

    It prints texts as they are: a path or a name may have brackets or colons, which Rich could take for its own marks.
    """
    made = Console(stderr=stderr, highlight=False, soft_wrap=stderr, markup=False, emoji=False)
    if not made.is_terminal:
        made.width = _WIDTH_OF_FILES
    return made


class _Warnings(logging.Handler):
    """Writes a line to standard error for each warning: above the progress bars, if there are any."""

    def emit(self, record: logging.LogRecord) -> None:
        with suppress(OSError, ValueError):  # a full disk or a closed terminal must not end what warns of something
            sys.stderr.write(f"{record.levelname.lower()}: {self.format(record)}\n")  # Rich's progress replaces it


_WARNINGS = _Warnings(logging.WARNING)


@contextmanager
def shown_warnings() -> Iterator[None]:
    """Show nasflow's own warnings and errors on the terminal in this block, whatever of its log Prefect shows."""
    log = logging.getLogger("nasflow")
    log.addHandler(_WARNINGS)
    try:
        yield
    finally:
        log.removeHandler(_WARNINGS)


def score_command(export: Path, base_dir: Path) -> str:
    """Return the shell command that rebuilds and scores an export, with the Python that has nasflow.

    Its data are looked for where they were in the search, in the folder of its config, if that is here.
    """
    where = ["--base-dir", str(base_dir)] if base_dir.is_dir() else []
    return shlex.join([sys.executable, str(export / "score.py"), *where])
