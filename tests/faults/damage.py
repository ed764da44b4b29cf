"""Damage to any file of a study while nothing runs."""

import random
import re
from collections import defaultdict
from pathlib import Path

from nasflow.training_service.machine.processes import carriers
from tests.faults.judge import numberless
from tests.faults.processes import end
from tests.faults.scene import Missed, Scene
from tests.faults.search import MARK, TroubledSearch
from tests.faults.storage import JOBS, STORE, contains

_KEPT = (".damaged", ".log")  # what nobody reads again


def damage_any(scene: Scene, rng: random.Random) -> str:
    """Everything is killed, and one file of the study's folder is emptied, cut or overwritten with random bytes."""
    search = scene.search
    scene.await_some(lambda: _files(search.folder, JOBS), "file")
    end(*carriers(MARK, str(search.folder)))
    search.trained()
    kinds: dict[str, list[Path]] = defaultdict(list)
    for file in sorted(_files(search.folder, JOBS)):
        if file.suffix not in _KEPT:
            kinds[numberless(str(file.relative_to(search.root)))].append(file)
    if not kinds:
        raise Missed("there are no files yet")
    kind = rng.choice(sorted(kinds))
    file = rng.choice(kinds[kind])
    if match := re.fullmatch(r"epoch-(\d+)\..*", file.name):
        sharing = [other for other in search.root.glob(f"trials/*/{file.name}") if other.samefile(file)]
        scene.excused.update((int(other.parent.name), int(match[1])) for other in sharing)
    how = _damage(file, rng)
    scene.promises.append(lambda: _silent_about_damage(search))
    if file.name == "events.jsonl":
        search.skip_events(file)
    return f"{how} {file.relative_to(search.root)} while everything was down"


def cut_power(scene: Scene, rng: random.Random) -> str:
    """Everything is killed, and files lose what was not synced. Their names stay, as on a journaling file system."""
    search = scene.search
    if not scene.remembers or scene.broken_disk is None:
        raise Missed("what is synced was not noted")
    scene.await_some(lambda: _files(search.folder, JOBS, STORE), "file")
    end(*carriers(MARK, str(search.folder)))
    search.trained()
    files = _files(search.folder, JOBS, STORE)
    changed = [file for file in files if scene.broken_disk.forget(file)]
    for file in search.root.glob("jobs/*/events.jsonl"):
        search.skip_events(file)
    names = sorted({file.name for file in changed})
    return f"power was cut: {len(changed)} of {len(files)} files had not been synced: {', '.join(names)[:120]}"


def _silent_about_damage(search: TroubledSearch) -> str | None:
    logs = [*search.folder.glob("*.log"), *search.root.rglob("*.log")]
    for file in search.root.rglob("*.damaged"):
        if not any(contains(log, file.name) for log in logs):
            return f"no warning about {file.relative_to(search.root)}"
    return None


def _files(folder: Path, *places: str) -> list[Path]:
    """Return the files of some parts of a search."""
    return [file for place in places for file in (folder / place).rglob("*") if file.is_file()]


def _damage(file: Path, rng: random.Random) -> str:
    size = file.stat().st_size
    how = rng.choice(["emptied", "cut", "overwrote"] if size else ["overwrote"])
    with file.open("r+b") as opened:
        if how == "overwrote":
            opened.write(rng.randbytes(max(size, 64)))
        else:
            opened.truncate(0 if how == "emptied" else rng.randrange(size))
    return how
