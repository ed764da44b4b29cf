"""Faults of what is on disk: locked, full, damaged, torn."""

import errno
import json
import mmap
import os
import random
import sqlite3
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from nasflow.checkpoint.store import CheckpointStore
from nasflow.job.spec import job_dir, trial_dir
from tests.faults.processes import Strike, end, stopped
from tests.faults.scene import Missed, Scene
from tests.faults.search import TroubledSearch

if TYPE_CHECKING:
    import psycopg

JOBS = "nasflow-runs"
"""The folder of the jobs and checkpoints, in that of the search."""
STORE = "store"
"""That of its database."""
LOCKED_SECONDS = 30.0


def lock_database(scene: Scene, rng: random.Random) -> str:
    """A transaction of another process that keeps all writers, or all but itself, out of the study's store."""
    search = scene.search
    scene.await_some(lambda: [True] if search.has_store() else [], "database")
    begin = rng.choice(["IMMEDIATE", "EXCLUSIVE"])
    seconds = 3.0 if scene.brief else LOCKED_SECONDS
    with closing(_locked(search, begin)):
        search.tend_for(seconds)
    return f"held the store's lock ({begin}) for {seconds:.0f} s"


def _locked(search: TroubledSearch, begin: str) -> "sqlite3.Connection | psycopg.Connection":
    """A connection that holds a lock until it is closed."""
    if search.database is not None:
        connection = sqlite3.connect(search.database, timeout=60, isolation_level=None)
        connection.execute(f"BEGIN {begin}")
        return connection
    import psycopg

    other = psycopg.connect(search.store)
    mode = {"IMMEDIATE": "SHARE ROW EXCLUSIVE", "EXCLUSIVE": "ACCESS EXCLUSIVE"}[begin]
    other.execute(f"LOCK TABLE attempts, epochs, trials, leases IN {mode} MODE".encode())
    return other


def fill_disk(place: str) -> Strike:
    """No byte is left on a small disk of the search, for a while."""

    def strike(scene: Scene, rng: random.Random) -> str:
        if not scene.disks:
            raise Missed("the search has no disks of its own")
        if place == STORE and scene.search.database is None:
            raise Missed("the search's store is on no disk of its own")
        seconds = scene.pause(rng, 1.0, 6.0)
        filler = scene.search.folder / place / "filler"
        with filler.open("wb", buffering=0) as file, suppress(OSError):
            for size in (2**20, 2**12, 1):
                with suppress(OSError):
                    while True:
                        file.write(bytes(size))
        with excuse_unsaved(scene) as unsaved:
            try:
                scene.search.tend_for(seconds)
            finally:
                filler.unlink()
        if place == JOBS and max(Counter(trial for trial, _ in unsaved).values(), default=0) > 1:
            scene.promises.append(lambda: _silent_about_disk(scene))  # the first one may have been saved before
        return f"left no room on the disk of {place} for {seconds:.1f} s"

    return strike


@contextmanager
def excuse_unsaved(scene: Scene) -> Iterator[set[tuple[int, int]]]:
    """Excuse the epochs that are reported within it, whose checkpoints may not have been saved. Filled at the end."""
    before = set(scene.search.told)
    unsaved: set[tuple[int, int]] = set()
    yield unsaved
    unsaved.update(scene.search.told.keys() - before)
    scene.excused.update(unsaved)


def refuse_writes(number: int) -> Strike:
    """Writing fails with an error number for a while: to the study's jobs and checkpoints, to its store, or to both."""

    def strike(scene: Scene, rng: random.Random) -> str:
        if scene.broken_disk is None:
            raise Missed("writing can't be made to fail")
        places = [JOBS, STORE] if number == errno.EROFS else [rng.choice([JOBS, STORE])]
        seconds = scene.pause(rng, 1.0, 8.0)
        with excuse_unsaved(scene):
            scene.broken_disk.fail(number, [scene.search.folder / place for place in places])
            try:
                scene.search.tend_for(seconds)
            finally:
                scene.broken_disk.work()
        return f"writing to {' and '.join(places)} failed with {errno.errorcode[number]} for {seconds:.1f} s"

    return strike


def _silent_about_disk(scene: Scene) -> str | None:
    search = scene.search
    told = any("No space left" in restart.said for restart in search.restarts)
    files = [*search.folder.glob("*.log"), *search.root.rglob("*.log"), *search.root.glob("jobs/*/events.jsonl")]
    return (
        None if told or any(contains(file, "No space left") for file in files) else "nobody said that the disk was full"
    )


def contains(file: Path, text: str) -> bool:
    """Whether a file, which may be large, has a text in it."""
    if file.stat().st_size == 0:
        return False
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        return mapped.find(text.encode()) >= 0


def damage(truncate: bool) -> Strike:
    """The newest checkpoint of a member is cut, or has a wrong bit, while its job is down."""

    def strike(scene: Scene, rng: random.Random) -> str:
        with downed_job(scene, rng) as job_id:
            root = scene.search.root
            spec = json.loads((job_dir(root, job_id) / "job.json").read_text())
            done = {e["trial"] for e in _events(root, job_id) if e["kind"] in ("final", "evicted")}
            open_members = [m["trial"] for m in spec["members"] if m["trial"] not in done]
            stores = {trial: CheckpointStore(trial_dir(root, trial)) for trial in open_members}
            chosen = [trial for trial, store in stores.items() if len(store.epochs()) > 1]
            if not chosen:
                raise Missed("no checkpoint has one before it")
            trial = rng.choice(chosen)
            epoch = stores[trial].epochs()[-1]
            file = stores[trial].path(epoch)
            sharing = [other for other in root.glob(f"trials/*/{file.name}") if other.samefile(file)]
            scene.excused.update((int(other.parent.name), epoch) for other in sharing)
            how = _truncate(file, rng) if truncate else _flip(file, rng)
            if truncate:
                scene.promises.append(lambda: _silent_about(scene, file))
        return f"{how} of checkpoint {epoch} of trial {trial}, shared by {len(sharing)}"

    return strike


def tear_events(scene: Scene, rng: random.Random) -> str:
    """The last line of a job's events is torn, as by a process that was killed while it wrote."""
    line = json.dumps({"at": time.time(), "kind": "epoch", "trial": 0, "epoch": 1, "metrics": {"val_accuracy": 0.5}})
    cut = rng.randrange(1, len(line))
    with downed_job(scene, rng) as job_id, (job_dir(scene.search.root, job_id) / "events.jsonl").open("a") as file:
        file.write(line[:cut])
    return f"job {job_id} was killed within a line of its events, after {cut} bytes"


@contextmanager
def downed_job(scene: Scene, rng: random.Random) -> Iterator[str]:
    """Within it, a job that ran is dead, and nobody starts it again. Its id.

    It was killed while its controller stood still; or with its worker, and then the controller.
    """
    search = scene.search
    while True:
        scene.await_some(search.jobs, "job")
        with stopped(scene.victim("controller", rng)) as controller:
            if not (jobs := search.jobs()):
                continue  # the last one has just ended
            job_id, job = rng.choice(jobs)
            deep = rng.random() < 0.5
            worker = job.parent()
            end(job, *([worker, controller] if deep and worker else []))
            yield job_id
            return


def _truncate(file: Path, rng: random.Random) -> str:
    size = file.stat().st_size
    left = rng.randrange(size)
    os.truncate(file, left)
    return f"cut to {left} of {size} bytes"


def _flip(file: Path, rng: random.Random) -> str:
    place, bit = rng.randrange(file.stat().st_size), rng.randrange(8)
    with file.open("r+b") as opened:
        opened.seek(place)
        [byte] = opened.read(1)
        opened.seek(place)
        opened.write(bytes([byte ^ (1 << bit)]))
    return f"flipped bit {bit} of byte {place}"


def _silent_about(scene: Scene, file: Path) -> str | None:
    place = f"{file.parent.name}/{file.name}"
    logs = scene.search.root.glob("jobs/*/job.log")
    return None if any(contains(log, place) for log in logs) else f"no warning about the damaged {place}"


def _events(root: Path, job_id: str) -> list[dict[str, object]]:
    events: list[dict[str, object]] = []
    file = job_dir(root, job_id) / "events.jsonl"
    if not file.exists():  # it was killed before it told anything
        return events
    for line in file.read_text(errors="replace").splitlines():
        with suppress(ValueError):
            event = json.loads(line)
            events += [event] if isinstance(event, dict) else []
    return events
