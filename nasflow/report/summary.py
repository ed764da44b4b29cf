"""Summaries of a round and of a search, as Markdown."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from nasflow.config.search import Objective
from nasflow.report.text import architecture_text, error_headline, markdown_cell, markdown_table, plain_number
from nasflow.space.architecture import Architecture
from nasflow.trial import STOP_AFTER, Trial, TrialStatus, without_stop

_ROWS = 100
_FAILURES = 20
_NUMBERS = 10


def round_summary_markdown(
    number: int, trials: Sequence[Trial], objectives: Sequence[Objective], carried: int = 0
) -> str:
    """Summarize a round: status counts, best trials, each trial (at most 100), and the failures with their reasons.

    Args:
        number: the round's.
        trials: all of the round.
        objectives: each has a column.
        carried: how many of the trials' epochs were trained by trials of earlier rounds, from which these go on.
    """
    rows = [
        {
            "trial": trial.number,
            "status": trial.status.replace("_", " "),
            **{objective.metric: plain_number(trial.metrics.get(objective.metric)) for objective in objectives},
            "epochs": trial.epochs,
            "replayed from": trial.replayed_from,
            "architecture": architecture_text(trial.architecture),
        }
        for trial in trials[:_ROWS]
    ]
    more = f"\n\n… and {len(trials) - _ROWS} more trials in the study" if len(trials) > _ROWS else ""
    parts = [
        f"# Round {number}",
        _totals(trials, carried),
        _best_lines(trials, objectives),
        markdown_table(rows) + more,
    ]
    return "\n\n".join(part for part in [*parts, _failures(trials)] if part)


def search_summary_markdown(name: str, trials: Sequence[Trial], objectives: Sequence[Objective]) -> str:
    """Summarize a search: status counts, best trials, the last 100 rounds, and the failures with their reasons."""
    rounds: defaultdict[int, list[Trial]] = defaultdict(list)
    for trial in trials:
        rounds[trial.round].append(trial)
    rows = [
        {
            "round": number,
            "trials": len(of_round),
            "scored": sum(trial.status.scored for trial in of_round),
            "failed": sum(_failed(trial) for trial in of_round),
            **{
                f"best {o.metric}": best.metrics[o.metric] if (best := _best(of_round, o)) else None for o in objectives
            },
        }
        for number, of_round in sorted(rounds.items())
    ]
    parts = [
        f"# {markdown_cell(name)}",
        _totals(trials),
        _best_lines(trials, objectives),
        markdown_table(rows[-_ROWS:]),
    ]
    return "\n\n".join(part for part in [*parts, _failures(trials)] if part)


def failure_rows(trials: Sequence[Trial]) -> list[dict[str, Any]]:
    """Return failed trials grouped by the most useful line of their errors, the most frequent first."""
    alike: defaultdict[str, list[int]] = defaultdict(list)
    for trial in trials:
        if _failed(trial):
            alike[error_headline(trial.error)].append(trial.number)
    return [
        {"trials": len(numbers), "which": _numbers(numbers), "error": headline}
        for headline, numbers in sorted(alike.items(), key=lambda item: (-len(item[1]), item[1]))
    ]


def epochs_trained(trials: Iterable[Trial]) -> int:
    """Return how many epochs some trials trained.

    Replays train none. Trials that differ only in when they end have trained those of the longest, because each goes on
    where the one before ended.
    """
    trained: dict[Architecture | int, int] = {}
    for trial in trials:
        if trial.replayed_from is None:
            key = without_stop(trial.architecture) if STOP_AFTER in trial.architecture else trial.number
            trained[key] = max(trained.get(key, 0), trial.epochs)
    return sum(trained.values())


def _totals(trials: Sequence[Trial], carried: int = 0) -> str:
    """The number of trials by status, and of epochs trained."""
    counts = Counter(trial.status for trial in trials)
    words = [f"{counts[status]} {status.replace('_', ' ')}" for status in TrialStatus if counts[status]]
    epochs = epochs_trained(trials) - carried
    replayed = sum(trial.replayed_from is not None for trial in trials)
    replays = f"; {replayed} replayed from known results" if replayed else ""
    return f"{len(trials)} trials: {', '.join(words) or 'none'}{replays}. {epochs:,} epochs trained."


def _best_lines(trials: Sequence[Trial], objectives: Sequence[Objective]) -> str:
    lines = []
    for objective in objectives:
        if best := _best(trials, objective):
            value = best.metrics[objective.metric]
            text = markdown_cell(architecture_text(best.architecture))
            lines.append(f"- best {objective.metric}: **{value:.5g}**, trial {best.number} ({text})")
    return "\n".join(lines)


def _best(trials: Sequence[Trial], objective: Objective) -> Trial | None:
    """The first of the best trials in one objective."""
    name = objective.metric
    scored = [trial for trial in trials if trial.status.scored and name in trial.metrics]
    return min(scored, key=lambda trial: (objective.to_loss(trial.metrics[name]), trial.number), default=None)


def _failures(trials: Sequence[Trial]) -> str:
    rows = failure_rows(trials)
    more = f"\n\n… and {len(rows) - _FAILURES} other errors" if len(rows) > _FAILURES else ""
    return f"## Failures\n\n{markdown_table(rows[:_FAILURES])}{more}" if rows else ""


def _failed(trial: Trial) -> bool:
    return trial.status in (TrialStatus.FAILED, TrialStatus.INVALID)


def _numbers(numbers: Sequence[int]) -> str:
    return ", ".join(str(number) for number in numbers[:_NUMBERS]) + (", …" if len(numbers) > _NUMBERS else "")
