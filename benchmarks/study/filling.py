"""Fill a finished study of any size by bulk inserts of the rows that the study's own methods would have written."""

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from sqlalchemy import insert

from nasflow.config.search import SearchConfig, parse_config
from nasflow.seeds import derive_seed
from nasflow.space.architecture import Architecture
from nasflow.study.database.store import AttemptRow, EpochRow, MemberRow, RoundRow, TrialRow
from nasflow.study.records import AttemptKind, AttemptState, Ending, RoundState
from nasflow.study.study import Study
from nasflow.trial import FailureKind, TrialStatus

A_ROUND, A_BATCH, EPOCHS = 100, 50, 20  # trials, trials, epochs a trial
WIDTHS = tuple(range(1, 65))
ERROR = "the loss is not finite"
BEGAN = datetime(2026, 1, 1, tzinfo=UTC)
_AT_ONCE = 20  # rounds in one transaction


def study_config(folder: Path, strategy: str = "random", rounds: int = 10_000) -> SearchConfig:
    """Return a search with a space of 2.4 million architectures that is quick to explore."""
    space = {"target": "nasflow.space.ready:mlp", "params": {"widths": list(WIDTHS)}}
    data = {"target": "nasflow.evaluator.data:DigitsRows"}
    return parse_config(
        {
            "name": "large",
            "space": space,
            "evaluator": {"kind": "classification", "data": data, "epochs": EPOCHS},
            "strategy": {"kind": strategy},
            "budget": {"rounds": rounds, "trials_per_round": A_ROUND},
            "store": f"sqlite:///{folder / 'nasflow.db'}",
            "work_dir": folder / "runs",
            "base_dir": folder,
        }
    )


def architecture(number: int) -> Architecture:
    """Return a different architecture of that space for each number."""
    first, second, third = (WIDTHS[number // 64**place % 64] for place in (2, 1, 0))
    return Architecture(
        {"depth": 3, "width0": first, "activation": "relu", "dropout": 0.1, "width1": second, "width2": third}
    )


def epoch_metrics(number: int) -> list[dict[str, float]]:
    """Return a learning curve."""
    rng = random.Random(number)
    top, rate = 0.5 + rng.random() / 2, 1 + 4 * rng.random()
    values = [top * epoch / (epoch + rate) for epoch in range(1, EPOCHS + 1)]
    return [{"train_loss": 2 - value, "val_loss": 2.1 - value, "val_accuracy": value} for value in values]


def fails(number: int) -> bool:
    """Whether the trial fails in its last epoch, both in its batch and in the retry alone."""
    return number % 100 == 99


def fill(study: Study, trials: int) -> None:
    """Fill a new study with ended rounds of `trials` trials in all. Assigns ids itself, so only for SQLite."""
    rounds = range(-(-trials // A_ROUND))
    attempt_ids = itertools.count(1)
    for some in (rounds[start : start + _AT_ONCE] for start in range(0, len(rounds), _AT_ONCE)):
        with study._store.write(study.name) as session:
            for number in some:
                members = range(number * A_ROUND, min(trials, (number + 1) * A_ROUND))
                session.execute(insert(RoundRow), [_round_values(study, number, len(members))])
                session.execute(insert(TrialRow), [_trial_values(study, trial, number) for trial in members])
                for kind, place, group in _attempts(members):
                    id = next(attempt_ids)
                    values = _attempt_values(study, id, number, kind=kind, number=place, members=group)
                    session.execute(insert(AttemptRow), [values])
                    session.execute(insert(MemberRow), _member_values(id, group))
                    if kind is AttemptKind.BATCH:
                        session.execute(insert(EpochRow), list(_epoch_values(id, group)))


def _attempts(members: range) -> Iterator[tuple[AttemptKind, int, Sequence[int]]]:
    for place, start in enumerate(range(0, len(members), A_BATCH)):
        yield AttemptKind.BATCH, place, members[start : start + A_BATCH]
    for place, trial in enumerate(filter(fails, members)):
        yield AttemptKind.ALONE, place, [trial]


def _round_values(study: Study, number: int, trials: int) -> dict[str, Any]:
    began = BEGAN + timedelta(minutes=number)
    return {
        "study_id": study._id, "number": number, "state": RoundState.COMPLETED, "started_at": began,
        "resumed_at": began, "ended_at": began + timedelta(seconds=50), "seconds": 50.0,
        "message": f"{trials} trials",
    }  # fmt: skip


def _trial_values(study: Study, number: int, round: int) -> dict[str, Any]:
    made = architecture(number)
    last = epoch_metrics(number)[-1]
    metrics = {} if fails(number) else {**last, "parameters": float(sum(made[f"width{i}"] for i in range(3)))}
    return {
        "id": number + 1, "study_id": study._id, "number": number, "round": round, "digest": made.digest,
        "architecture": dict(made), "seed": derive_seed(study.config.seed, made.to_json()),
        "status": TrialStatus.FAILED if fails(number) else TrialStatus.TRAINED, "metrics": metrics,
        "value": metrics.get("val_accuracy"), "parameters": metrics.get("parameters"),
        "epochs": EPOCHS - fails(number), "error": ERROR if fails(number) else None,
    }  # fmt: skip


def _attempt_values(
    study: Study, id: int, of_round: int, *, kind: AttemptKind, number: int, members: Sequence[int]
) -> dict[str, Any]:
    failed = any(map(fails, members))
    job = f"r{of_round:03d}-{kind}-{number:03d}-0"
    began = BEGAN + timedelta(minutes=of_round)
    ended = began + timedelta(seconds=40)
    times = {"started_at": began.isoformat(), "ended_at": ended.isoformat()}
    return {
        "id": id, "study_id": study._id, "round": of_round, "kind": kind, "number": number,
        "state": AttemptState.FAILED if failed else AttemptState.SUCCEEDED,
        "failure": FailureKind.TRIAL if failed else None, "error": ERROR if failed else None,
        "job_id": job, "handle": {"service": "local", "job_id": job}, "slot": "cpu-0", "restarts": 0,
        "started_at": began, "ended_at": ended,
        "endings": [asdict(Ending(job, FailureKind.TRIAL, ERROR, {}, slot="cpu-0")) | times] if failed else None,
    }  # fmt: skip


def _member_values(attempt_id: int, members: Sequence[int]) -> list[dict[str, Any]]:
    return [{"attempt_id": attempt_id, "trial_id": n + 1, "position": place} for place, n in enumerate(members)]


def _epoch_values(attempt_id: int, members: Sequence[int]) -> Iterator[dict[str, Any]]:
    for number in members:
        for epoch, metrics in enumerate(epoch_metrics(number)[: EPOCHS - fails(number)], 1):
            yield {
                "trial_id": number + 1, "epoch": epoch, "metrics": metrics, "seconds": 0.5, "attempt_id": attempt_id,
                "recorded_at": BEGAN + timedelta(seconds=epoch),
            }  # fmt: skip
