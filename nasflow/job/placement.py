"""Decides which trials share a job or one of its devices, and how many jobs there are."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Load:
    """What has to be known about a trial to place it.

    Attributes:
        trial: its number.
        shares: trials with equal values can share one pass over their data.
        cost: relative work of a step; the number of parameters, until steps are measured.
    """

    trial: int
    shares: str
    cost: float


def place(loads: Sequence[Load], slots: int) -> list[list[int]]:
    """Return groups of trial numbers, one for each job.

    Trials that can share data are spread over one job per slot, the most expensive first and each to the job with the
    least work so far (Graham's LPT rule, 1969), or of those with equal work to the one with the fewest members, so that
    jobs that run side by side end at about the same time. A job may have more members than can train at a time: the
    others wait inside it.
    """
    groups: list[list[int]] = []
    for shares in dict.fromkeys(load.shares for load in loads):
        alike = [load for load in loads if load.shares == shares]
        bins: list[tuple[float, list[int]]] = [(0.0, []) for _ in range(min(len(alike), slots))]
        for load in sorted(alike, key=lambda load: (-load.cost, load.trial)):
            least = min(range(len(bins)), key=lambda index: (bins[index][0], len(bins[index][1])))
            work, members = bins[least]
            bins[least] = (work + load.cost, [*members, load.trial])
        groups.extend(sorted(members) for _, members in bins)
    return groups


def place_on_devices(costs: Mapping[int, float], count: int) -> dict[int, int]:
    """Return by trial which device of its job trains it, as `place` would spread them over jobs."""
    groups = place([Load(trial, "", cost) for trial, cost in costs.items()], count)
    return {trial: device for device, group in enumerate(groups) for trial in group}
