"""What `nasflow setup` made on the server, and found there."""

from dataclasses import dataclass
from enum import StrEnum


class Done(StrEnum):
    """What became of a thing that should be there."""

    CREATED = "created"
    CHANGED = "changed"
    FOUND = "found"
    LEFT = "left as it is"


@dataclass(frozen=True)
class Made:
    """A thing on the server after the set-up.

    Attributes:
        what: its kind.
        note: what it does, or why it was left.
    """

    what: str
    name: str
    done: Done
    note: str
