"""Objects on the server that `nasflow setup` created, changed or found."""

from dataclasses import dataclass
from enum import StrEnum


class Done(StrEnum):
    """What `nasflow setup` did to an object on the server."""

    CREATED = "created"
    CHANGED = "changed"
    FOUND = "found"
    LEFT = "left as it is"


@dataclass(frozen=True)
class Made:
    """An object on the server after `nasflow setup`.

    Attributes:
        what: its kind.
        name: its name on the server.
        done: what was done to it.
        note: what it does, or why it was not changed.
    """

    what: str
    name: str
    done: Done
    note: str
