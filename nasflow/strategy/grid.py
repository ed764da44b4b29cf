"""Grid search: every architecture in turn."""

from collections.abc import Iterator, Sequence
from itertools import islice, pairwise

from nasflow.errors import SpaceError
from nasflow.space.architecture import Architecture
from nasflow.space.space import Space
from nasflow.strategy.begin_with import GivenFirst
from nasflow.trial import Trial

_LOOKS = 100  # places where a record is compared with the grid


class GridSearch(GivenFirst):
    """Proposes every architecture once, in the space's order, without those on record.

    A search that resumes its own grid goes on after the last architecture on record, without walking to it.

    Args:
        space: what is searched.
        float_steps: how many values of a float domain are tried.
        first: what is proposed before, and left out of the order.
    """

    def __init__(self, space: Space, float_steps: int, first: Sequence[Architecture] = ()):
        super().__init__(first)
        self._space = space
        self._float_steps = float_steps
        self._given = set(first)
        self._record: dict[int, Architecture] = {}  # what else was tried, by the trial's number
        self._walk: Iterator[Architecture] | None = None

    def _propose(self, count: int) -> list[Architecture]:
        if count and self._walk is None:
            known = set(self._record.values())
            self._walk = (one for one in self._after(self._end_of_grid()) if one not in known)
        return list(islice(self._walk or (), count))

    def tell(self, trials: Sequence[Trial]) -> None:
        """See `Strategy.tell`. Results change nothing."""
        super().tell(trials)
        self._note(trials)

    def proposed(self, trials: Sequence[Trial]) -> None:
        """See `Strategy.proposed`."""
        super().proposed(trials)
        self._note(trials)

    def _note(self, trials: Sequence[Trial]) -> None:
        own = [trial for trial in trials if trial.architecture not in self._given]
        self._record |= {trial.number: trial.architecture for trial in own}

    def _after(self, last: Architecture | None) -> Iterator[Architecture]:
        """Return the grid after `last` (all of it if None), without the given architectures."""
        return (one for one in self._space.enumerate(self._float_steps, after=last) if one not in self._given)

    def _end_of_grid(self) -> Architecture | None:
        """Return the last architecture on record if the record is a beginning of this grid, else None.

        Another strategy may have proposed the record, or this one with other `float_steps`. A long record is compared
        at some places only, because each takes two builds of a model.
        """
        record = [architecture for _, architecture in sorted(self._record.items())]
        pairs = list(pairwise([None, *record]))
        some = [*pairs[:1], *pairs[:: -max(1, len(pairs) // _LOOKS)]]  # the first, the last, and some between
        try:
            is_own = all(next(self._after(before), None) == after for before, after in some)
        except SpaceError:  # a number that is not on the grid, or an architecture that does not fit the space
            is_own = False
        return record[-1] if record and is_own else None
