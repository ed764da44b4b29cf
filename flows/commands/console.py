"""The terminal that commands write to."""

import shlex
import sys
from pathlib import Path

from rich.console import Console

_WIDTH_OF_FILES = 160


def console(stderr: bool = False) -> Console:
    """A console that leaves long sentences whole and, where no terminal says how wide it is, has room for tables."""
    made = Console(stderr=stderr, highlight=False, soft_wrap=stderr)
    if not made.is_terminal:
        made.width = _WIDTH_OF_FILES
    return made


def score_command(export: Path) -> str:
    """What to type to rebuild and score an export, with the Python that has nasflow."""
    return shlex.join([sys.executable, str(export / "score.py")])
