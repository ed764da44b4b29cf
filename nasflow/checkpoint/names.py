"""The names of checkpoint files, and which of them count.

A job that another controller has replaced may write on, for example on a host that was cut off. So each job has a
generation, and files of later generations than the first are named after it: `epoch-0003.safetensors`,
`epoch-0003.g2.safetensors`. A job never touches files of a later generation than its own, and files of an earlier one
count only up to where the later one began (fencing, as in Burrows 2006, The Chubby lock service).
"""

import re
from collections.abc import Iterable
from itertools import groupby
from typing import NamedTuple

_NAME = re.compile(r"epoch-(\d{4,})(?:\.g([1-9]\d*))?\.([a-z]+(?:\.[a-z]+)?)", re.ASCII)
WITHIN = "within.safetensors"
"""How the file of a state within the epoch after that of its name ends."""


class Name(NamedTuple):
    """A checkpoint's name. The greater of two names is that of the newer checkpoint."""

    generation: int
    epoch: int

    def file(self, ending: str = "safetensors") -> str:
        """Return the name of its file."""
        generation = f".g{self.generation}" if self.generation else ""
        return f"epoch-{self.epoch:04d}{generation}.{ending}"


def parse(files: Iterable[str], ending: str = "safetensors") -> set[Name]:
    """Return the names of the checkpoints among a folder's files."""
    found = [match for match in map(_NAME.fullmatch, files) if match and match[3] == ending]
    return {Name(int(match[2] or 0), int(match[1])) for match in found}


def valid(names: Iterable[Name]) -> dict[int, Name]:
    """Return the checkpoints that count, by epoch: of a generation those before the first of every later one."""
    found: dict[int, Name] = {}
    for _, group in groupby(sorted(names, reverse=True), key=lambda name: name.generation):
        some = list(group)
        begin = min(found, default=None)
        found |= {name.epoch: name for name in some if begin is None or name.epoch < begin}
    return found
