"""The output of `nasflow studies` and `nasflow show`, as tables and as JSON."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from nasflow.report.text import numbers_text
from nasflow.study.records import Attempt, Ending, StudyInfo
from nasflow.study.study import Study
from nasflow.trial import TrialStatus

_FAILED = (TrialStatus.FAILED, TrialStatus.INVALID)
_SHOWN_FAILURES = 20


def studies_table(infos: Sequence[StudyInfo]) -> Table:
    """Return a table with one row per study."""
    table = Table("study", "created", "rounds", "trials", "best", title="studies")
    for info in infos:
        best = f"{info.objective.metric} {info.best:.4f}" if info.objective and info.best is not None else info.problem
        created = f"{info.created_at:%Y-%m-%d %H:%M}"
        table.add_row(info.name, created, str(info.rounds), _counts(info.counts), Text(best))
    return table


def studies_json(infos: Sequence[StudyInfo]) -> list[dict[str, Any]]:
    """Return the studies for a program."""
    return [
        {
            "name": info.name,
            "created_at": info.created_at.isoformat(),
            "rounds": info.rounds,
            "trials": {str(status): count for status, count in info.counts.items()},
            "objective": info.objective and info.objective.model_dump(),
            "best": info.best,
            "problem": info.problem or None,
        }
        for info in infos
    ]


def study_view(study: Study, retry: str) -> Group:
    """Return the tables of a study: rounds, counts of trials, and what failed and why.

    Args:
        study: its record.
        retry: the command that trains its failed trials again.
    """
    rounds = Table("round", "state", "started", "seconds", "what happened", title=f"study {study.name}")
    for record in study.rounds():
        started = f"{record.started_at:%Y-%m-%d %H:%M:%S}"
        rounds.add_row(str(record.number), record.state, started, f"{record.seconds:.1f}", record.message)
    counts = study.counts()
    parts: list[Any] = [rounds, Text(f"trials: {_counts(counts)}")]
    failed = study.trials(_FAILED, limit=_SHOWN_FAILURES)
    if failed:
        table = Table("trial", "round", "status", "attempts", "error", title="failed trials")
        for trial in failed:
            attempts = ", ".join(_attempt(attempt) for attempt in study.attempts(trial=trial.number))
            headline = Text((trial.error or "").partition("\n")[0])
            table.add_row(str(trial.number), str(trial.round), trial.status, attempts, headline)
        parts.append(table)
    if counts.get(TrialStatus.FAILED):  # of the others, the architecture does not fit
        parts.append(Text(f"train the failed ones again with: {retry}", no_wrap=True, overflow="ignore"))
    if troubled := study.troubled_attempts(_SHOWN_FAILURES):
        table = Table("job", "trials", "blamed on", "what happened", title="jobs that ended badly")
        for attempt in troubled:
            for ending in attempt.endings:
                job = ending.job_id or ""
                table.add_row(job, numbers_text(attempt.members), ending.failure, Text(_shown_ending(ending)))
        parts.append(table)
    return Group(*parts)


def study_json(study: Study, start: int, limit: int) -> dict[str, Any]:
    """Return a page of what is recorded, for a program: all rounds, some trials, and the attempts that train them.

    Args:
        study: its record.
        start: the number of the first trial.
        limit: the most trials.
    """
    trials = study.trials(limit=limit, offset=start)
    end = start + len(trials)
    return {
        "name": study.name,
        "next": end if end < sum(study.counts().values()) and trials else None,
        "config": study.config.model_dump(mode="json", exclude={"store"}),
        "rounds": [
            {"number": r.number, "state": str(r.state), "seconds": r.seconds, "message": r.message}
            for r in study.rounds()
        ],
        "trials": [trial.model_dump(mode="json") for trial in trials],
        "attempts": [
            {
                "round": attempt.round,
                "kind": str(attempt.kind),
                "number": attempt.number,
                "members": list(attempt.members),
                "state": str(attempt.state),
                "failure": attempt.failure,
                "error": attempt.error,
                "slot": attempt.slot,
                "restarts": attempt.restarts,
                "endings": [asdict(ending) for ending in attempt.endings],
            }
            for attempt in study.attempts(trials=range(start, end))
        ],
    }


def _attempt(attempt: Attempt) -> str:
    blamed = f" ({attempt.failure})" if attempt.failure else ""
    return f"{attempt.kind} {attempt.state}{blamed}"


def _shown_ending(ending: Ending) -> str:
    fewer = f"\nat most {ending.places} at a time from here" if ending.places else ""
    return "\n".join((ending.error or "").splitlines()[:2]) + fewer


def _counts(counts: dict[TrialStatus, int]) -> str:
    return ", ".join(f"{count} {status.replace('_', ' ')}" for status, count in counts.items() if count) or "none"
