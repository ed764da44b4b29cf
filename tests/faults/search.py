"""A search that is started again until it ends, whatever is done to it from outside."""

import json
import subprocess
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from nasflow.errors import StudyError
from nasflow.job.events import read_lines
from nasflow.study.study import study_names
from nasflow.training_service.local.state import LocalState
from nasflow.training_service.machine.processes import carriers, end_all
from tests.flows.searches import NASFLOW, PrefectProcess, PrefectServer, Searches

NAME = "search"
MARK = "NASFLOW_FAULTS"  # environment variable of everything that a search starts
POSTGRESQL = "postgresql"  # the config with its store there
HERE = Path(__file__).parent

STALLED = 10.0  # seconds: longer than `job-stop` and a full disk, short enough for a test
STALLED_THERE = 60.0  # the same on services, whose news may come late
_ROUND = ["ok", "ok", "raise", "ok", "stuck", "nan", "ok", "ok"]
_PLAIN: dict[str, Any] = {
    "space": {"target": "spaces.py:conducts", "params": {"kinds": 2 * _ROUND}},
    "evaluator": {
        "kind": "classification",
        "data": {"target": "nasflow.evaluator.data:Wine"},
        "epochs": 6,
        "early_stopping": {"metric": "val_loss", "patience": 2, "min_delta": 0.01},
    },
    "strategy": {"kind": "grid"},
    # Few enough hours for a clock that is set by a day to end it, and too many for the search.
    "budget": {"rounds": 2, "trials_per_round": len(_ROUND), "hours": 3, "on_timeout": "stop"},
    "limits": {"stalled": STALLED},
    "checkpoint": {"on_preempt": True},
    "training_service": {"kind": "local", "slots": 2, "idle_timeout": 60},
    "merge": {"fuse": "always"},  # which kernels run must not hang on what was measured, when
    "retry": {"delay_seconds": [0.1], "batch": 50, "alone": 50},
}
CONFIGS: dict[str, dict[str, Any]] = {
    "plain": _PLAIN,
    POSTGRESQL: _PLAIN,
    "crowded": _PLAIN | {"merge": {"fuse": "always", "max_members": 2}, "pruner": {"kind": "median", "min_others": 2}},
}
"""By name: all members of a job train at once; the same on PostgreSQL; two at a time, and the pruner stops some."""

_SILENT_SECONDS = 150.0  # without any news, a search hangs


class HungSearch(Exception):
    """A search that tells nothing more, or ends again and again before its time."""


@dataclass(frozen=True)
class Controller:
    """A controller's process, and what it has printed."""

    process: "subprocess.Popen[bytes]"
    log: Path

    def said(self) -> str:
        """The end of what it has printed, in one line."""
        return " ".join(self.log.read_text(errors="replace").split())[-400:]


@dataclass(frozen=True)
class Start:
    """A controller that ended before the search did."""

    code: int
    said: str


class TroubledSearch:
    """One search of a study of its own in `folder`.

    Args:
        server: of Prefect.
        config: of the search.
        store: URL of its store; by default SQLite's in the folder `store` of its own.
        extra: environment variables of the controller and all that it starts.

    Attributes:
        root: the folder of its jobs and checkpoints.
        store: the URL of its store.
        searches: `nasflow` in its folder.
        restarts: how controllers ended that were started again, the oldest first.
        ended: the search has come to its end.
    """

    def __init__(
        self,
        folder: Path,
        server: PrefectProcess,
        config: Mapping[str, Any],
        extra: Mapping[str, str] | None = None,
        store: str | None = None,
    ):
        for place in ("tmp", "store"):
            (folder / place).mkdir(parents=True, exist_ok=True)
        self.root = folder / "nasflow-runs" / NAME
        self.prefect = server
        self.store = store or f"sqlite:///{folder / 'store' / 'nasflow.db'}"
        cache = folder / "cache" if (folder / "cache").exists() else folder.parent / "cache"
        env = {**server.server.env, MARK: str(folder), "XDG_CACHE_HOME": str(cache), "TMPDIR": str(folder / "tmp")}
        env |= extra or {}
        self.searches = Searches(folder, PrefectServer(server.server.url, env))
        self.searches.write(NAME, **{"base_dir": str(HERE), "store": self.store, **config})
        self.restarts: list[Start] = []
        self.ended = False
        self._controller: Controller | None = None
        self._launched = 0
        self._offsets: dict[Path, int] = defaultdict(int)
        self._trained: Counter[tuple[int, int]] = Counter()
        self._news = time.monotonic()

    @property
    def folder(self) -> Path:
        """Of the study's config, database and jobs."""
        return self.searches.folder

    @property
    def database(self) -> Path | None:
        """The file of the study's store, if it is SQLite's."""
        return Path(self.store.removeprefix("sqlite:///")) if self.store.startswith("sqlite:///") else None

    def has_store(self) -> bool:
        """Whether the study is in its store by now."""
        try:
            return NAME in study_names(self.store)
        except StudyError:
            return False

    def command(self, config: str = NAME) -> list[str]:
        """What a user types to start the search, or to go on with it."""
        return [*NASFLOW, "run", f"{config}.yaml"]

    def launch(self, config: str = NAME) -> "Controller":
        """One more controller."""
        self._launched += 1
        log = self.folder / f"controller-{self._launched}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                self.command(config), cwd=self.folder, env=self.searches.server.env, stdout=output, stderr=output
            )
        return Controller(process, log)

    def tend(self) -> None:
        """Start the controller, or start it again if it ended before the search did.

        Raises:
            HungSearch: nothing has happened for long, or the search can't be brought to its end.
        """
        code = None if self._controller is None else self._controller.process.poll()
        if code == 0:
            self.ended = True
            return
        if time.monotonic() - self._news > _SILENT_SECONDS:
            raise HungSearch(f"no news for {_SILENT_SECONDS:.0f} s, after {len(self.restarts)} restarts")
        if self._controller is not None and code is not None:
            self.restarts.append(Start(code, self._controller.said()))
        if self._controller is None or code is not None:
            self._controller = self.launch()

    def trained(self) -> int:
        """How many epochs were told as trained so far."""
        for file in sorted(self.root.glob("jobs/*/events.jsonl")):
            lines, self._offsets[file] = read_lines(file, self._offsets[file])
            for event in map(_parse, lines):
                self._news = time.monotonic()
                if event.get("kind") == "epoch" and not event["replayed"]:
                    self._trained[event["trial"], event["epoch"]] += 1
        return len(self._trained)

    def skip_events(self, file: Path) -> None:
        """Read nothing of what a file of events has at present."""
        self._offsets[file] = file.stat().st_size

    @property
    def told(self) -> Counter[tuple[int, int]]:
        """How often each epoch (trial, epoch) was told as trained."""
        self.trained()
        return self._trained

    def tend_until(self, epochs: int) -> None:
        """Tend the search until so many epochs were trained, or to its end."""
        while not self.ended and self.trained() < epochs:
            self.tend()
            time.sleep(0.02)

    def tend_for(self, seconds: float, silent: bool = False) -> None:
        """Tend the search for some seconds, or to its end. `silent`: it may be without news for as long."""
        begin = time.monotonic()
        while not self.ended and time.monotonic() < begin + seconds:
            self._news = time.monotonic() if silent else self._news
            self.tend()
            self.trained()
            time.sleep(0.01)

    def tend_to_the_end(self) -> None:
        """Tend the search until it has ended."""
        while not self.ended:
            self.tend_for(1.0)

    def adopt(self, controller: "Controller") -> None:
        """Take another process for the controller, in the place of one that has ended, or just begun."""
        if self._controller is not None:
            self._controller.process.kill()
            self._controller.process.wait()
        self._controller = controller

    def living(self, kind: str) -> list[psutil.Process]:
        """The live processes of a kind: controller, worker, zygote (which forks the workers), job or server."""
        if kind == "controller":
            return alive([self._controller.process.pid] if self._controller is not None else [])
        if kind == "server":
            return alive([self.prefect.pid])
        if kind == "worker":
            return [worker for _, worker in self._recorded(ready=True)]
        if kind == "job":
            return [job for _, job in self.jobs()]
        parents = {parent for worker in self.living("worker") if (parent := worker.parent()) and is_program(parent)}
        return [*parents, *(program for _, program in self._recorded(ready=False) if program not in parents)]

    def jobs(self) -> list[tuple[str, psutil.Process]]:
        """The jobs that run, by id, and their processes."""
        state = LocalState(self.root)
        found = []
        for slot, worker in self._recorded(ready=True):
            with suppress(FileNotFoundError):
                found += list(zip(state.claimed(slot), children(worker), strict=False))
        return found

    def left_over(self, patience: float = 20.0) -> list[psutil.Process]:
        """What of the search still runs after it has had some seconds to end."""
        deadline = time.monotonic() + patience
        while (left := carriers(MARK, str(self.folder))) and time.monotonic() < deadline:
            time.sleep(0.1)
        return left

    def close(self) -> None:
        """End everything that it started."""
        end_all(lambda: carriers(MARK, str(self.folder)))
        if self._controller is not None:
            self._controller.process.wait(20)

    def _recorded(self, ready: bool) -> list[tuple[str, psutil.Process]]:
        """The slots and live processes on record that have started up as workers, or have not yet."""
        state = LocalState(self.root)
        found = []
        for slot in sorted(path.name for path in (state.dir / "workers").glob("*")):
            with suppress(FileNotFoundError, psutil.NoSuchProcess):  # dismissed meanwhile
                record = state.worker(slot)
                if record and record.process.alive() and state.ready(slot).exists() is ready:
                    found.append((slot, psutil.Process(record.process.pid)))
        return found


def alive(pids: Iterable[int]) -> list[psutil.Process]:
    """Those of some processes that live. One that was killed and whose threads are still about to end does not."""
    found = []
    for pid in pids:
        with suppress(psutil.NoSuchProcess):
            process = psutil.Process(pid)
            if process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def children(process: psutil.Process) -> list[psutil.Process]:
    """Live children of a process."""
    try:
        return alive(child.pid for child in process.children())
    except psutil.NoSuchProcess:
        return []


def is_program(process: psutil.Process) -> bool:
    """Whether this is a program that forks workers."""
    try:
        return "nasflow.training_service.local.worker" in process.cmdline()
    except psutil.NoSuchProcess:
        return False


def _parse(line: str) -> dict[str, Any]:
    try:
        event = json.loads(line)
    except ValueError:
        return {}
    return event if isinstance(event, dict) else {}
