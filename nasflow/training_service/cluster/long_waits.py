"""Says in the log why runs wait that their cluster has not started for long: perhaps it never can."""

import logging
import re
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping

from nasflow.clean_text import shortened
from nasflow.training_service.base import JobStatus
from nasflow.training_service.cluster.runs import Run
from nasflow.training_service.cluster.seen import Seen

_LOG = logging.getLogger(__name__)

_LONG = 60.0  # seconds
_SHOWN = 200  # characters of the ids of jobs


class LongWaits:
    """Says it once for each run and reason, and in one line for all runs that have a reason in common."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}  # by the name of the run
        self._said: set[tuple[str, str]] = set()

    def look(self, runs: Iterable[Run], seen: Mapping[str, Seen]) -> None:
        """Say what is new.

        Args:
            runs: all that were submitted and have not ended.
            seen: what the cluster reports of them, by name.
        """
        now = time.monotonic()
        waiting = {run.name: run for run in runs if _waits(run, seen)}
        self._since = {name: self._since.get(name, now) for name in waiting}
        self._said = {(name, kind) for name, kind in self._said if name in waiting}
        new: dict[str, list[Run]] = defaultdict(list)
        for name, run in waiting.items():
            kind = re.sub(r"\d+", "", seen[name].reason)  # numbers of jobs, and of nodes that are free just now
            if now - self._since[name] >= _LONG and (name, kind) not in self._said:
                self._said.add((name, kind))
                new[kind].append(run)
        for first, *others in new.values():
            which = shortened(", ".join(run.job_id for run in (first, *others)), _SHOWN)
            reason = seen[first.name].reason or "the cluster gives no reason"
            _LOG.warning("job%s %s", f"s {which} wait, the first because:" if others else f" {which} waits:", reason)


def _waits(run: Run, seen: Mapping[str, Seen]) -> bool:
    return run.name in seen and seen[run.name].status is JobStatus.PENDING and not run.began()
