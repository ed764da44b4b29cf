"""The state of Python's global random numbers, read and written a hundred times faster than by `random.getstate`."""

import ctypes
import random
import struct
from typing import Any

_WORDS = 624
_BYTES = 4 * (1 + _WORDS)  # how many words are used, and the words of the Mersenne Twister


def _address(generator: random.Random) -> int | None:
    """Return where a generator's numbers are in memory; None where CPython keeps them otherwise than it did."""
    address = id(generator) + object.__basicsize__
    if type(generator).__basicsize__ < object.__basicsize__ + _BYTES:
        return None
    found = struct.unpack(f"={1 + _WORDS}I", ctypes.string_at(address, _BYTES))
    return address if (*found[1:], found[0]) == generator.getstate()[1] else None


_generator: Any = random._inst
_place = _address(_generator)


def get_state() -> tuple[Any, ...]:
    """Return the position of `random`'s functions, for `set_state`, and to compare it with others of this process."""
    if _place is None:
        return random.getstate()
    return ctypes.string_at(_place, _BYTES), _generator.gauss_next


def seeded(seed: int) -> tuple[Any, ...]:
    """Return the position at which a seed begins, for `set_state`."""
    generator: Any = random.Random(seed)
    if _place is None:
        return generator.getstate()  # type: ignore[no-any-return]
    return ctypes.string_at(id(generator) + object.__basicsize__, _BYTES), generator.gauss_next


def set_state(state: tuple[Any, ...]) -> None:
    """Go to a position."""
    if _place is None:
        random.setstate(state)
    else:
        ctypes.memmove(_place, state[0], _BYTES)
        _generator.gauss_next = state[1]


def as_plain(state: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return a position as `random.getstate` gives it."""
    if _place is None:
        return state
    used, *words = struct.unpack(f"={1 + _WORDS}I", state[0])
    return (random.Random.VERSION, (*words, used), state[1])


def from_plain(state: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return a position for `set_state` that `random.getstate` gave."""
    if _place is None:
        return state
    _, (*words, used), gauss = state
    return struct.pack(f"={1 + _WORDS}I", used, *words), gauss
