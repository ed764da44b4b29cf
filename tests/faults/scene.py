"""Where a fault strikes: a search, chance, and what the one who strikes has to tell."""

import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

import psutil

from tests.faults.broken_disk import BrokenDisk
from tests.faults.clock import Clock
from tests.faults.package import Package
from tests.faults.proxy import Proxy
from tests.faults.search import TroubledSearch
from tests.faults.service_stage import ServiceStage
from tests.postgresql import PostgresqlServer

T = TypeVar("T")

_PATIENCE = 20.0  # seconds to wait for somebody to strike


class Missed(Exception):
    """There was nothing to strike: no such process, or the search had ended."""


@dataclass
class Scene:
    """One search under faults.

    Attributes:
        search: the search.
        brief: pauses are to be short.
        clock: of all its processes, if that can be set.
        disks: its jobs and checkpoints, its store, its temporary files and its cache are on small disks of their own.
        broken_disk: what makes its writing fail.
        remembers: the broken disk notes what is synced.
        proxy: between it and the Prefect server.
        postgresql: the server with its store, if that is PostgreSQL.
        package: the copy of nasflow that it runs on, if it does not run on the installed one.
        service: on which its jobs run, if that is not this machine.
        excused: epochs (trial, epoch) whose checkpoint was damaged: each is trained again as often, at most.
        restarts: of the search that were put down to a fault.
        promises: what to ask when the search has ended: each says in words what was broken, or None.
    """

    search: TroubledSearch
    brief: bool = False
    clock: Clock | None = None
    disks: bool = False
    broken_disk: BrokenDisk | None = None
    remembers: bool = False
    proxy: Proxy | None = None
    postgresql: PostgresqlServer | None = None
    package: Package | None = None
    service: ServiceStage | None = None
    excused: Counter[tuple[int, int]] = field(default_factory=Counter)
    restarts: int = 0
    promises: list[Callable[[], str | None]] = field(default_factory=list)

    def pause(self, rng: random.Random, least: float, most: float) -> float:
        """Some seconds, a fraction of them if it is to be brief."""
        return rng.uniform(least, most) * (0.4 if self.brief else 1.0)

    def victim(self, kind: str, rng: random.Random) -> psutil.Process:
        """A live process of a kind; waits a while for one."""
        return rng.choice(self.await_some(lambda: self.search.living(kind), kind))

    def await_some(self, find: Callable[[], list[T]], what: str) -> list[T]:
        """What `find` finds, once it finds something.

        Raises:
            Missed: the search ended first, or it took too long.
        """
        deadline = time.monotonic() + _PATIENCE
        while not (found := find()):
            self.search.tend_for(0.05)
            if self.search.ended or time.monotonic() > deadline:
                raise Missed(f"no {what} to strike")
        return found
