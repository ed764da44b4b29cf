"""What a search left behind, compared with what it leaves when nobody disturbs it."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import create_engine, text

from nasflow.report.leaderboard import leaderboard_rows
from nasflow.study.store import parse_url
from nasflow.study.study import Study
from nasflow.trial import Trial
from tests.faults.search import NAME, TroubledSearch

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
    """

    trials: Mapping[int, Trial]
    leaderboard: Sequence[Mapping[str, Any]]
    rows: Rows
    repeated: Collection[tuple[int, int]]
    told: Counter[tuple[int, int]]
    fused: int


@dataclass
class Verdict:
    """What is wrong with an outcome. Everything is 0, or empty, where nothing is.

    Attributes:
        lost: trials that are missing, have not ended, or ended otherwise than undisturbed.
        duplicated: metric rows beyond one a trial and epoch, or of epochs that there should not be.
        retrained: epochs that were told as trained once more, though they were on record.
        differs: whether the leaderboard, or any metric of any epoch, is another one.
        left: processes that were left over.
        broken: promises about single faults that were not kept, in words.
    """

    lost: list[int] = field(default_factory=list)
    duplicated: int = 0
    retrained: int = 0
    differs: bool = False
    left: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.lost or self.duplicated or self.retrained or self.differs or self.left or self.broken)


def outcome(search: TroubledSearch) -> Outcome:
    """What a search that has ended, or was given up, has left behind."""
    if not search.has_store():
        return Outcome({}, [], {}, [], search.told, 0)
    study = Study.load(search.store, NAME)
    try:
        trials = {trial.number: trial for trial in study.trials()}
        board = leaderboard_rows(study.leaderboard(100), study.config.objectives, 100)
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
    return Outcome(trials, board, rows, repeated, search.told, fused)


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
    )
