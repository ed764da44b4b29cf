"""What a search left behind, compared with what it leaves when nobody disturbs it."""

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import create_engine, text

from nasflow.report.leaderboard import leaderboard_json
from nasflow.study.database.store import parse_url
from nasflow.study.study import Study
from nasflow.trial import Trial
from tests.faults.search import NAME, TroubledSearch

_NO_LITTER = {".log", ".yaml", ".damaged"}

Rows = Mapping[tuple[int, int], Mapping[str, float | None]]


@dataclass(frozen=True)
class Outcome:
    """What there is of a study.

    Attributes:
        trials: by number.
        leaderboard: as `nasflow leaderboard --json` prints it.
        rows: metrics by trial and epoch.
        repeated: (trial, epoch) that have more than one row of metrics.
        told: how often an epoch was told as trained.
        fused: how many members the largest unit had.
        files: how many files there are of each name, with # for numbers; only whether there are any, but for those of
            trials, of which there is one for each.
    """

    trials: Mapping[int, Trial]
    leaderboard: Sequence[Mapping[str, Any]]
    rows: Rows
    repeated: Collection[tuple[int, int]]
    told: Counter[tuple[int, int]]
    fused: int
    files: Counter[str] = field(default_factory=Counter)


@dataclass
class Verdict:
    """What is wrong with an outcome. Everything is 0, or empty, where nothing is.

    Attributes:
        lost: trials that are missing, have not ended, or ended otherwise than undisturbed.
        duplicated: metric rows beyond one a trial and epoch, or of epochs that there should not be.
        retrained: epochs that were told as trained once more, though they were on record.
        differs: whether the leaderboard, or any metric of any epoch, is another one.
        left: processes that were left over.
        litter: names of files that there should not be, or not as often.
        broken: promises about single faults that were not kept, in words.
    """

    lost: list[int] = field(default_factory=list)
    duplicated: int = 0
    retrained: int = 0
    differs: bool = False
    left: list[str] = field(default_factory=list)
    litter: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)

    def __bool__(self) -> bool:
        found = self.lost, self.duplicated, self.retrained, self.differs, self.left, self.litter, self.broken
        return any(found)


def outcome(search: TroubledSearch) -> Outcome:
    """What a search that has ended, or was given up, has left behind."""
    if not search.has_store():
        return Outcome({}, [], {}, [], search.told, 0)
    study = Study.load(search.store, NAME)
    try:
        trials = {trial.number: trial for trial in study.trials()}
        board = leaderboard_json(study.leaderboard(100), study.config.objectives, 100)
        epochs = study.epochs(trials)
    finally:
        study.close()
    rows = {(number, record.epoch): record.metrics for number, records in epochs.items() for record in records}
    engine = create_engine(parse_url(search.store))
    with engine.connect() as connection:
        query = text("SELECT trial_id, epoch FROM epochs GROUP BY 1, 2 HAVING count(*) > 1")
        repeated = [(trial, epoch) for trial, epoch in connection.execute(query)]
    engine.dispose()
    units = [unit for event in search.searches.events(NAME) if event["kind"] == "planned" for unit in event["units"]]
    fused = max((len(unit["members"]) for unit in units if unit["fused"]), default=0)
    return Outcome(trials, board, rows, repeated, search.told, fused, _files(search))


def _files(search: TroubledSearch) -> Counter[str]:
    """Return the names of all files but logs, configs, the cache, and what was set aside because it was damaged."""
    files = [file for file in search.folder.rglob("*") if file.is_file() and file.suffix not in _NO_LITTER]
    names = (file.relative_to(search.folder).as_posix() for file in files)
    counts = Counter(numberless(name) for name in names if not name.startswith("cache/"))
    return Counter({name: count if "/trials/" in name else 1 for name, count in counts.items()})


def numberless(name: str) -> str:
    """Return a file's name with # for each number, decimal or hexadecimal, and without the generation of its job."""
    return re.sub(r"[0-9a-f]*[0-9][0-9a-f]*", "#", re.sub(r"[-.]g[0-9]+(?=[/.])", "", name))


def judge(found: Outcome, wanted: Outcome, excused: Mapping[tuple[int, int], int] | None = None) -> Verdict:
    """Compare. `excused`: how often an epoch (trial, epoch) had to be trained again, its checkpoint being damaged."""
    excused = Counter(excused or {})
    lost = [
        number
        for number, trial in wanted.trials.items()
        if number not in found.trials or found.trials[number].status is not trial.status
    ]
    strangers = found.trials.keys() - wanted.trials.keys()
    again = {epoch: count - 1 - excused[epoch] for epoch, count in found.told.items()}
    return Verdict(
        lost=lost,
        duplicated=len(found.repeated) + len(found.rows.keys() - wanted.rows.keys()),
        retrained=sum(max(0, count) for count in again.values()),
        differs=bool(strangers)
        or found.leaderboard != wanted.leaderboard
        or found.rows != wanted.rows
        or any(trial.metrics != wanted.trials[number].metrics for number, trial in found.trials.items()),
        litter=sorted(found.files - wanted.files),
    )
