"""Which trials share a job, and how many jobs there are."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Load:
    """What placing a trial needs to know.

    Attributes:
        trial: its number.
        shares: trials with equal values can share one pass over their data.
        cost: relative work of a step; the number of parameters stands in for it until steps are measured.
    """

    trial: int
    shares: str
    cost: float


def place(loads: Sequence[Load], slots: int, max_members: int) -> list[list[int]]:
    """Groups of trial numbers, one job each.

    Trials that can share data are spread over as many jobs as keep every slot busy and no job over `max_members`, the
    costliest first and each to the job with the least work so far (Graham's LPT rule, 1969), so that jobs that run
    side by side end about together.
    """
    groups: list[list[int]] = []
    for shares in dict.fromkeys(load.shares for load in loads):
        alike = [load for load in loads if load.shares == shares]
        jobs = min(len(alike), max(slots, -(-len(alike) // max_members)))
        bins: list[tuple[float, list[int]]] = [(0.0, []) for _ in range(jobs)]
        for load in sorted(alike, key=lambda load: (-load.cost, load.trial)):
            room = [index for index, (_, members) in enumerate(bins) if len(members) < max_members]
            least = min(room, key=lambda index: (bins[index][0], index))
            work, members = bins[least]
            bins[least] = (work + load.cost, [*members, load.trial])
        groups.extend(sorted(members) for _, members in bins)
    return groups
