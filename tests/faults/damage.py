"""Damage to any file of a study while nothing runs."""

import random
import re
from collections import defaultdict
from pathlib import Path

from nasflow.training_service.machine.processes import carriers
from tests.faults.judge import numberless
from tests.faults.processes import end
from tests.faults.scene import Missed, Scene
from tests.faults.search import MARK
from tests.faults.storage import JOBS

_KEPT = (".damaged", ".log")  # what nobody reads again


def damage_any(scene: Scene, rng: random.Random) -> str:
    """Everything is killed, and one file of the study's folder is emptied, cut or overwritten with random bytes."""
    search = scene.search
    scene.await_some(search.jobs, "job")
    end(*carriers(MARK, str(search.folder)))
    search.trained()
    kinds: dict[str, list[Path]] = defaultdict(list)
    for file in sorted((search.folder / JOBS).rglob("*")):
        if file.is_file() and file.suffix not in _KEPT:
            kinds[numberless(str(file.relative_to(search.root)))].append(file)
    if not kinds:
        raise Missed("there are no files yet")
    kind = rng.choice(sorted(kinds))
    file = rng.choice(kinds[kind])
    if match := re.fullmatch(r"epoch-(\d+)\..*", file.name):
        sharing = [other for other in search.root.glob(f"trials/*/{file.name}") if other.samefile(file)]
        scene.excused.update((int(other.parent.name), int(match[1])) for other in sharing)
    how = _damage(file, rng)
    if file.name == "events.jsonl":
        search.skip_events(file)
    return f"{how} {file.relative_to(search.root)} while everything was down"


def _damage(file: Path, rng: random.Random) -> str:
    size = file.stat().st_size
    how = rng.choice(["emptied", "cut", "overwrote"] if size else ["overwrote"])
    with file.open("r+b") as opened:
        if how == "overwrote":
            opened.write(rng.randbytes(max(size, 64)))
        else:
            opened.truncate(0 if how == "emptied" else rng.randrange(size))
    return how
