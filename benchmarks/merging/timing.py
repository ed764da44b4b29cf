"""Interleave contestants: every repeat runs each of them once, so that disturbances of the machine affect all."""

import gc
import os
import resource
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import psutil

from benchmarks.merging.contestants import Contestant, Outcome

Clock = Literal["wall", "cpu"]


@dataclass(frozen=True)
class Lap:
    """One run of one contestant, its seconds scaled to the whole group.

    Attributes:
        wall: wall-clock seconds.
        cpu: seconds of processor time, of this process and of the children it waited for.
    """

    wall: float
    cpu: float
    outcome: Outcome

    def seconds(self, clock: Clock) -> float:
        """Return the seconds of one of the clocks."""
        return self.wall if clock == "wall" else self.cpu


@dataclass
class Laps:
    """All runs of all contestants.

    Attributes:
        warm_up: the first run of each, by name; it fills caches and is not counted.
        timed: the others, by name, in the order of the repeats.
        machine: the results of `gauge` before each repeat, and the load: processes waiting for a core or running
            (1-minute mean), and the busy share of all cores since the last repeat.
    """

    warm_up: dict[str, Lap] = field(default_factory=dict)
    timed: dict[str, list[Lap]] = field(default_factory=dict)
    machine: list[dict[str, float]] = field(default_factory=list)

    def seconds(self, name: str, clock: Clock = "wall") -> float:
        """Return the median of the seconds."""
        return statistics.median(lap.seconds(clock) for lap in self.timed[name])

    def least(self, name: str) -> float:
        """Return the wall seconds of the fastest run."""
        return min(lap.wall for lap in self.timed[name])

    def speed_up(self, name: str, over: str, clock: Clock = "wall") -> float:
        """Return how many times as fast as another contestant: the median over the repeats of the ratio within each."""
        pairs = zip(self.timed[name], self.timed[over], strict=True)
        return statistics.median(other.seconds(clock) / own.seconds(clock) for own, other in pairs)

    def figure(self, name: str, key: str) -> float:
        """Return the median of an outcome's figure."""
        return statistics.median(lap.outcome.figures[key] for lap in self.timed[name])


def interleave(
    contestants: Sequence[Contestant],
    repeats: int,
    gauge: Callable[[], dict[str, float]] = dict,
    laps: Laps | None = None,
) -> Laps:
    """Run each contestant `repeats` times, after one warm-up, starting with another one in every repeat.

    With `laps`, add the repeats to them, without another warm-up.
    """
    gc.collect()
    gc.freeze()  # existing objects, mostly from imports, are not garbage
    if laps is None:
        laps = Laps(timed={contestant.name: [] for contestant in contestants})
        for contestant in contestants:
            laps.warm_up[contestant.name] = run_once(contestant)
    psutil.cpu_percent()
    for repeat in range(repeats):
        first = repeat % len(contestants)
        for contestant in [*contestants[first:], *contestants[:first]]:
            laps.timed[contestant.name].append(run_once(contestant))
        load = {"load": os.getloadavg()[0], "busy": psutil.cpu_percent() / 100}
        laps.machine.append({**load, **gauge()})
    gc.unfreeze()
    return laps


def run_once(contestant: Contestant) -> Lap:
    """Time one run."""
    gc.collect()
    wall, cpu = time.perf_counter(), _cpu_seconds()
    outcome = contestant.run()
    wall, cpu = time.perf_counter() - wall, _cpu_seconds() - cpu
    contestant.clean()
    return Lap(wall * contestant.scale, cpu * contestant.scale, outcome)


def _cpu_seconds() -> float:
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime
