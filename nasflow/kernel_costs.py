"""Measured costs of kernels: the cache on this machine, and what of it travels with jobs and comes back from them.

A place is what figures are valid for: the processor or device, the version of torch and the number of threads.
"""

import functools
import hashlib
import json
import logging
import math
import os
import re
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field, FiniteFloat

from nasflow.clean_text import CleanText, clean_text
from nasflow.system.caches import cache_dir

_LOG = logging.getLogger(__name__)

MOST_TOLD = 2000
"""The most figures of one event, which stays below the longest line that is read."""
_MOST_GIVEN = 8000  # figures of a job file, a megabyte or so
_MOST_PLACES = 8  # of a job file
_MOST_KEPT = 50_000  # figures of one place
_LONGEST_NAME = 400  # characters

_PLACE = re.compile("[0-9a-f]{16}")

Place = Annotated[str, Field(pattern=f"^{_PLACE.pattern}$")]
Figures = dict[Annotated[CleanText, Field(max_length=_LONGEST_NAME)], Annotated[FiniteFloat, Field(ge=0)] | None]
"""Seconds, by operation, kernel and rows; None for a kernel that can't run."""


def _bounded(costs: dict[str, Figures]) -> dict[str, Figures]:
    if sum(map(len, costs.values())) > _MOST_GIVEN:
        raise ValueError(f"more than {_MOST_GIVEN} figures")
    return costs


KernelCosts = Annotated[dict[Place, Figures], Field(max_length=_MOST_PLACES), AfterValidator(_bounded)]
"""The figures of a job file, by place."""


@functools.lru_cache(maxsize=16_384)  # each job reads all figures again
def figure_name(text: str) -> str:
    """Return the name of a figure as it is kept and sent: clean, and the end of a long one replaced by its hash."""
    clean = clean_text(text)
    if len(clean) <= _LONGEST_NAME:
        return clean
    digest = hashlib.sha256(clean.encode()).hexdigest()
    return f"{clean[: _LONGEST_NAME - len(digest) - 1]} {digest}"


def sent(figures: Mapping[str, float]) -> Figures:
    """Return figures as JSON can express them."""
    return {name: seconds if math.isfinite(seconds) else None for name, seconds in figures.items()}


def received(figures: Figures) -> dict[str, float]:
    """Return figures that were sent: infinite for a kernel that can't run."""
    return {name: math.inf if seconds is None else seconds for name, seconds in figures.items()}


class CostCache:
    """Figures in JSON files, one for each place; those that were added last stand last.

    Args:
        folder: where the files are; None for `$XDG_CACHE_HOME/nasflow` (or `~/.cache/nasflow`).
    """

    def __init__(self, folder: Path | None = None):
        self._folder = folder or cache_dir()

    def path(self, place: str) -> Path:
        """Return the file of a place."""
        return self._folder / f"kernel-costs-{place}.json"

    def places(self) -> list[str]:
        """Return the places of all files, that of the newest file last."""
        named = [path for path in self._folder.glob(self.path("*").name) if _PLACE.fullmatch(_place(path))]
        files = [path for path in named if path.is_file()]
        return [_place(path) for path in sorted(files, key=lambda path: path.stat().st_mtime)]

    def read(self, place: str) -> dict[str, float]:
        """Return the figures of a place; none if there are none, or if they can't be read."""
        try:
            figures = json.loads(self.path(place).read_text())
        except (OSError, ValueError):
            return {}
        known = figures.items() if isinstance(figures, dict) else ()
        return {
            name: value
            for name, value in known
            if name == figure_name(name) and isinstance(value, float) and value >= 0
        }

    def add(self, place: str, figures: Mapping[str, float]) -> None:
        """Add figures to the file of a place, if it can be written. One that is there is not replaced."""
        path = self.path(place)
        aside = path.with_suffix(f".{os.getpid()}-{threading.get_ident()}")
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            known = self.read(place)
            new = {name: seconds for name, seconds in figures.items() if name not in known}
            aside.write_text(json.dumps(known | new, indent=0))
            aside.replace(path)
        except OSError as error:
            _LOG.warning("costs of kernels can't be saved, so they are measured again each time: %s", error)


def _place(path: Path) -> str:
    return path.stem.rpartition("-")[2]


class StudyCosts:
    """The figures that a controller gives the jobs of its study, and takes from them. Threads may share it.

    What is known at its start, and what is told first, stays: so each job plans as those before it did.

    Args:
        cache: read at once, and added to.
    """

    def __init__(self, cache: CostCache):
        self._cache = cache
        self._lock = threading.Lock()
        self._known = {place: cache.read(place) for place in cache.places()[-_MOST_PLACES:]}

    def given(self) -> dict[str, Figures]:
        """Return the figures for a job file: the newest of the newest places, as many as it may have."""
        found: dict[str, Figures] = {}
        left = _MOST_GIVEN
        with self._lock:
            for place in list(reversed(self._known))[:_MOST_PLACES]:
                newest = list(self._known[place].items())[-left:] if left else []
                if newest:
                    found[place] = sent(dict(newest))
                left -= len(newest)
        return found

    def add(self, place: str, figures: Figures) -> None:
        """Add what a job has told; a figure that is known stays as it is, and those beyond a limit are left out."""
        with self._lock:
            if place not in self._known and len(self._known) >= 2 * _MOST_PLACES:
                return
            known = self._known.pop(place, None)
            known = self._cache.read(place) if known is None else known
            self._known[place] = known
            new = {name: seconds for name, seconds in received(figures).items() if name not in known}
            if new and len(known) + len(new) <= _MOST_KEPT:
                known.update(new)
                self._cache.add(place, new)
