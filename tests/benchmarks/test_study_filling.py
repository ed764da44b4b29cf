"""The study that `benchmarks.study` measures is one that the study's own methods would have put on record."""

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from sqlalchemy import select

from benchmarks.study.__main__ import growth, table
from benchmarks.study.filling import (
    A_BATCH,
    A_ROUND,
    EPOCHS,
    ERROR,
    architecture,
    epoch_metrics,
    fails,
    fill,
    study_config,
)
from nasflow.load_target import load_target
from nasflow.space.space import Space
from nasflow.study.database.store import AttemptRow, EpochRow, MemberRow, RoundRow, TrialRow
from nasflow.study.records import Attempt, AttemptState, EpochRecord, FinalRecord, RoundState
from nasflow.study.study import Study
from nasflow.trial import FailureKind

TRIALS = 2 * A_ROUND
# When something happened, not what.
WHEN = {"started_at", "resumed_at", "ended_at", "recorded_at", "seconds"}


def train(study: Study, attempt: Attempt) -> None:
    job = f"r{attempt.round:03d}-{attempt.kind}-{attempt.number:03d}-0"
    study.start_attempt(attempt.id, job, {"service": "local", "job_id": job})
    for trial in attempt.members:
        known = epoch_metrics(trial)[: EPOCHS - fails(trial)] if attempt.kind == "batch" else []
        study.record_epochs([EpochRecord(trial, n, metrics, 0.5, attempt.id) for n, metrics in enumerate(known, 1)])
    failed = [trial for trial in attempt.members if fails(trial)]
    widths = {trial: float(sum(architecture(trial)[f"width{i}"] for i in range(3))) for trial in attempt.members}
    study.record_outcome(
        attempt.id,
        AttemptState.FAILED if failed else AttemptState.SUCCEEDED,
        [
            FinalRecord(trial, {**epoch_metrics(trial)[-1], "parameters": widths[trial]}, EPOCHS)
            for trial in attempt.members
            if trial not in failed
        ],
        dict.fromkeys(failed, ERROR),
        failure=FailureKind.TRIAL if failed else None,
        error=ERROR if failed else None,
        slot="cpu-0",
    )


def search(study: Study) -> None:
    for number in range(TRIALS // A_ROUND):
        study.begin_round(number)
        members = range(number * A_ROUND, (number + 1) * A_ROUND)
        study.submit_trials(number, [architecture(trial) for trial in members])
        groups = [members[start : start + A_BATCH] for start in range(0, A_ROUND, A_BATCH)]
        for attempt in study.plan_batches(number, groups):
            train(study, attempt)
        for trial in filter(fails, members):
            train(study, study.new_attempt(trial))
            study.fail_trial(trial, ERROR)
        study.end_round(number, RoundState.COMPLETED, f"{A_ROUND} trials")


def rows(study: Study) -> dict[str, list[dict[str, Any]]]:
    found = {}
    with study._store.read() as session:
        for kind in (RoundRow, TrialRow, AttemptRow, MemberRow, EpochRow):
            keys = list(kind.__table__.primary_key)
            columns = [column.name for column in kind.__table__.columns]
            found[kind.__tablename__] = [
                without_times({name: getattr(row, name) for name in columns})
                for row in session.scalars(select(kind).order_by(*keys))
            ]
    return found


def without_times(values: Any) -> Any:
    if isinstance(values, dict):
        return {name: without_times(value) for name, value in values.items() if name not in WHEN}
    return [without_times(value) for value in values] if isinstance(values, list) else values


def open_study(folder: Path) -> Study:
    folder.mkdir()
    return Study.open(study_config(folder))


def test_a_filled_study_is_one_that_was_searched(tmp_path: Path) -> None:
    filled, searched = open_study(tmp_path / "filled"), open_study(tmp_path / "searched")
    fill(filled, TRIALS)
    search(searched)
    one, other = rows(filled), rows(searched)
    for name, expected in other.items():
        assert one[name] == expected, name
    assert len(one["epochs"]) == TRIALS * EPOCHS - 2
    for study in (filled, searched):
        study.close()


def test_its_architectures_are_different_points_of_its_space(tmp_path: Path) -> None:
    target = study_config(tmp_path).space
    space = Space.of(load_target(target.target, tmp_path), target.params)
    for number in (0, 1, 64, 99_999):
        space.validate(architecture(number))
    digests = [architecture(number).digest for number in range(5000)]
    assert all(len(list(alike)) == 1 for _, alike in groupby(sorted(digests)))


def test_figures() -> None:
    assert growth([1000, 100_000], [0.1, 10.0]) == 1.0
    names: Sequence[str] = ["open", "resume, random", "resume, grid", "resume, evolution", "nasflow leaderboard"]
    wall = {**dict.fromkeys([*names, "nasflow --help"], 1.0), "memory (MB)": 20.0}
    shown = table({10_000: wall}, {10_000: wall})
    assert [str(cell).rpartition(", ")[2] for cell in shown.columns[2].cells] == ["met"] * 6 + ["MISSED"]
