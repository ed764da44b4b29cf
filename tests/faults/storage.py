"""Faults of what is on disk: locked, full, damaged, torn."""

import json
import os
import random
import sqlite3
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from nasflow.checkpoint.store import CheckpointStore
from nasflow.job.spec import job_dir, trial_dir
from tests.faults.processes import Strike, end, stopped
from tests.faults.scene import Missed, Scene

LOCKED_SECONDS = 30.0


def lock_database(scene: Scene, rng: random.Random) -> str:
    """A transaction of another process that keeps all writers, or all but itself, out of the study's store."""
    search = scene.search
    [database] = scene.await_some(lambda: [search.database] if search.database.exists() else [], "database")
    begin = rng.choice(["IMMEDIATE", "EXCLUSIVE"])
    seconds = 3.0 if scene.brief else LOCKED_SECONDS
    with closing(sqlite3.connect(database, timeout=60, isolation_level=None)) as connection:
        connection.execute(f"BEGIN {begin}")
        search.tend_for(seconds)
        connection.execute("ROLLBACK")
    return f"held the store's lock ({begin}) for {seconds:.0f} s"


def fill_disk(scene: Scene, rng: random.Random) -> str:
    """No byte is left on the disk with jobs and checkpoints, for a while."""
    if not scene.disk:
        raise Missed("the search has no disk of its own")
    seconds = scene.pause(rng, 1.0, 6.0)
    filler = scene.search.root.parent / "filler"
    with filler.open("wb", buffering=0) as file, suppress(OSError):
        for size in (2**20, 2**12, 1):
            with suppress(OSError):
                while True:
                    file.write(bytes(size))
    before = set(scene.search.told)
    try:
        scene.search.tend_for(seconds)
    finally:
        filler.unlink()
    unsaved = scene.search.told.keys() - before
    scene.excused.update(unsaved)
    if max(Counter(trial for trial, _ in unsaved).values(), default=0) > 1:  # the first one may have been saved before
        scene.promises.append(lambda: _silent_about_disk(scene))
    return f"left no room on the disk for {seconds:.1f} s"


def _silent_about_disk(scene: Scene) -> str | None:
    search = scene.search
    told = [restart.said for restart in search.restarts]
    told += [file.read_text(errors="replace") for file in (*search.folder.glob("*.log"), *search.root.rglob("*.log"))]
    told += [file.read_text(errors="replace") for file in search.root.glob("jobs/*/events.jsonl")]
    return None if any("No space left" in text for text in told) else "nobody told that the disk was full"


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
    logs = [log.read_text(errors="replace") for log in scene.search.root.glob("jobs/*/job.log")]
    return None if any(place in log for log in logs) else f"no warning about the damaged {place}"


def _events(root: Path, job_id: str) -> list[dict[str, object]]:
    events: list[dict[str, object]] = []
    file = job_dir(root, job_id) / "events.jsonl"
    if not file.exists():  # it was killed before it told anything
        return events
    for line in file.read_text().splitlines():
        with suppress(ValueError):
            events.append(json.loads(line))
    return events
