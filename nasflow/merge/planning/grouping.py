"""Groups members by likeness, and decides for each group whether it is one unit, several, or each member by itself.

Likeness is what the operations that members have in common cost, as a share of all. Members in an order in which like
ones are neighbours are one unit unless two cost less: then they are split where neighbours are least alike, and so is
each of the two parts.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

MARGIN = 0.07
"""What fusing members must save at least, as a share of their time alone, because estimates are not exact."""

Work = dict[Hashable, float]
"""The seconds of a member's operations by signature."""


@dataclass(frozen=True)
class Stage:
    """A batch of a unit that serves the members at two positions, and perhaps some between these."""

    seconds: float
    first: int
    last: int


class Grouping:
    """Groups members, which are given in an order in which like ones are neighbours.

    Args:
        works: of the members.
        stages: returns those of a unit of the members at these positions.
        step: seconds of a unit's step beside its batches.
        limit: most members of a unit.
    """

    def __init__(self, works: Sequence[Work], stages: Callable[[range], Sequence[Stage]], step: float, limit: int):
        self._step, self._limit = step, limit
        self._parts, self._planned, self._estimated = cache(self._split), cache(stages), cache(self._stages_of)
        self._alone = [step + sum(work.values()) for work in works]
        # in coarse steps, so that the middle decides between boundaries that are about equal
        self._likeness = [round(_likeness(*both), 1) for both in pairwise(works)]

    def units(self) -> list[range]:
        """Return the positions of each unit's members; single ones are those that are no faster in a unit."""
        found: list[range] = []
        to_ask = [range(len(self._alone))] if self._alone else []
        while to_ask:
            group = to_ask.pop()
            if len(group) == 1 or self._is_unit(group):
                found.append(group)
            else:
                to_ask += reversed(self._parts(group))
        return found

    def _split(self, group: range) -> tuple[range, range]:
        """Split where neighbours are least alike; among equals, so that the parts fill as few units as possible."""
        units = max(2, -(-len(group) // self._limit))
        middle = group.start + len(group) * (units // 2) / units
        cut = min(group[1:], key=lambda at: (self._likeness[at - 1], abs(at - middle)))
        return range(group.start, cut), range(cut, group.stop)

    def _is_unit(self, group: range) -> bool:
        """Whether a group is faster as one unit, also by its real plan: so all costs are known that this plan needs."""
        if len(group) > self._limit:
            return False
        return self._saves(group, self._estimated(group)) and self._saves(group, self._planned(group))

    def _saves(self, group: range, stages: Sequence[Stage]) -> bool:
        """Whether one unit with these stages is faster than a group's two parts, each one unit or its members alone.

        What only one part has is a little slower in a unit with the other, because less of it stays in the caches.
        """
        parts = self._parts(group)
        cut = parts[1].start
        unlike = sum(stage.seconds for stage in stages if stage.last < cut or stage.first >= cut)
        apart = lonely = 0.0
        for part in parts:
            alone, fused = sum(self._alone[at] for at in part), self._fused(part)
            if fused < (1 - MARGIN) * alone:
                apart += fused
            else:
                apart += alone
                lonely += alone
        together = self._step + sum(stage.seconds for stage in stages)
        return together + MARGIN * (lonely + unlike) < apart

    def _fused(self, group: range) -> float:
        if len(group) == 1:
            return self._alone[group.start]
        return self._step + sum(stage.seconds for stage in self._estimated(group))

    def _stages_of(self, group: range) -> Sequence[Stage]:
        """Return the stages of a unit; those of parts that have next to nothing in common, one after the other."""
        if len(group) > 1:
            left, right = self._parts(group)
            if self._likeness[right.start - 1] == 0:
                return [*self._estimated(left), *self._estimated(right)]
        return self._planned(group)


def _likeness(one: Work, other: Work) -> float:
    common = sum(min(seconds, other[key]) for key, seconds in one.items() if key in other)
    every = sum(one.values()) + sum(other.values()) - common
    return common / every if every else 1.0
