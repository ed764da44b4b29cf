"""Something that reads input from outside, and what may become of that."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Target:
    """A reader of input.

    Attributes:
        seeds: good inputs.
        check: reads an input, which may write into the folder, and uses what was read. Returns how much of it was
            accepted; 0 counts as refused.
        refusals: what `check` may raise, with a sentence for the user.
        tokens: pieces of text that mean something in this kind of input.
        reshape: changes an input by its structure.
    """

    name: str
    seeds: Sequence[bytes]
    check: Callable[[bytes, Path], int]
    refusals: tuple[type[Exception], ...]
    tokens: Sequence[bytes] = ()
    reshape: Callable[[random.Random, bytes], bytes] | None = None
