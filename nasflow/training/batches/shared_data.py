"""What a pass sets in data sets, which other loaders may set, too, before the pass goes on."""

from collections.abc import Iterable
from typing import Any

import torch

from nasflow.training.batches.kept_workers import begin_epoch


class SharedData:
    """The data sets of a loader: each pass finds their generators and epochs as it has left them.

    Training and validation may read parts of one data set, and a validation may come in the middle of a training pass.

    Args:
        parts: the data sets; those with torch generators as `generator`, or with `set_epoch`, are looked after.
        users: the last user of each generator and data set, by id; the same for all loaders that may share some.

    Attributes:
        users: as given.
    """

    def __init__(self, parts: Iterable[Any], users: "dict[int, SharedData]"):
        self._parts = list(parts)
        self.users = users
        self._generators: list[torch.Generator] = []
        self._states: dict[int, torch.Tensor] = {}  # of generators that others use meanwhile, by id
        self._number = 0

    def begin(self, number: int, seed: int) -> None:
        """Seed the generators, and tell the data sets the number of the pass."""
        found = [getattr(part, "generator", None) for part in self._parts]
        self._generators = [generator for generator in found if isinstance(generator, torch.Generator)]
        for thing in (*self._generators, *self._parts):
            self._take_over(thing)
        self._states.clear()
        self._number = number
        begin_epoch(self._parts, number, seed)

    def go_on(self) -> None:
        """Put back what others have set since this was used last."""
        used = [generator for generator in self._generators if self._take_over(generator) is not None]
        for part in self._parts:
            other = self._take_over(part)
            if other is not None and other._number != self._number and hasattr(part, "set_epoch"):
                part.set_epoch(self._number)  # which may seed the generators
        for generator in used:
            generator.set_state(self._states.pop(id(generator)))

    def _take_over(self, thing: Any) -> "SharedData | None":
        """Return the other user of a generator or data set, if there was one since; it goes on from here later."""
        other = self.users.get(id(thing))
        self.users[id(thing)] = self
        if other is None or other is self:
            return None
        if isinstance(thing, torch.Generator):
            other._states[id(thing)] = thing.get_state()
        return other
