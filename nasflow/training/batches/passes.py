"""Pass after pass over a loader, cut into epochs of a given length."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from itertools import islice
from typing import Any

from nasflow.errors import ConfigError


class Passes:
    """The batches of one pass over a loader after the other, from any of them on.

    Going on where it was costs nothing. Elsewhere it begins at the pass of that batch, if passes have a known length,
    else at the first one, and loads what comes before, so that the batches are the same as if it had gone on.

    Args:
        begin: begins a pass, given its number from 0, and returns its batches.
        stream: gives the random stream of the pass that was begun last.
        length: batches of a pass; None if it is not known.
        passed: called for each batch that is passed over.
    """

    def __init__(
        self,
        begin: Callable[[int], Iterator[Any]],
        stream: Callable[[], AbstractContextManager[Any]],
        length: int | None,
        passed: Callable[[], object] = lambda: None,
    ):
        self._begin, self._stream, self._length, self._passed = begin, stream, length or None, passed
        self._batches: Iterator[Any] = iter(())
        self._number = -1  # of the pass; before the first one
        self._place = 0  # of the next batch, among those of all passes
        self._first = 0  # place of the pass's first batch

    def take(self, first: int, count: int) -> Iterator[Iterator[Any]]:
        """Yield `count` batches from place `first` on, in one iterator for each pass; use it up within its stream.

        There are fewer if a pass has none at all.

        Raises:
            ConfigError: a pass has another number of batches than its loader says.
        """
        if not self._go_to(first):
            return
        while self._place < first + count:
            yield islice(self._counted(), first + count - self._place)
            if self._place < first + count and not self._next_pass():
                return

    def _go_to(self, place: int) -> bool:
        number = place // self._length if self._length else 0
        goes_on = self._number >= 0 if self._length is None else self._number == number
        if place < self._place or not goes_on:
            self._start(number, number * (self._length or 0))
        while self._place < place:
            with self._stream():
                for _ in islice(self._counted(), place - self._place):
                    self._passed()
            if self._place < place and not self._next_pass():
                return False
        return True

    def _start(self, number: int, place: int) -> None:
        self._number, self._place, self._first = number, place, place
        self._batches = self._begin(number)

    def _next_pass(self) -> bool:
        """Begin the next pass; False if this one had no batches."""
        found = self._place - self._first
        if self._length and found != self._length:
            raise ConfigError(
                f"evaluator.data: a loader gives {found} batches where its length is {self._length}, so "
                "'batches_per_epoch' can't tell where an epoch begins; mend its __len__ or leave it out"
            )
        if not found:
            return False
        self._start(self._number + 1, self._place)
        return True

    def _counted(self) -> Iterator[Any]:
        for batch in self._batches:
            self._place += 1
            yield batch
