"""Summaries of a round and of a search, as Markdown."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

from nasflow.config.search import Objective
from nasflow.report.text import architecture_text, error_headline, markdown_cell, markdown_table, plain_number
from nasflow.trial import Trial, TrialStatus

_ROWS = 100
_FAILURES = 20
_NUMBERS = 10


def round_summary_markdown(number: int, trials: Sequence[Trial], objectives: Sequence[Objective]) -> str:
    """Summarize a round: status counts, best trials, each trial (at most 100), and the failures with their reasons."""
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
    parts = [f"# Round {number}", _totals(trials), _best_lines(trials, objectives), markdown_table(rows) + more]
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


def _totals(trials: Sequence[Trial]) -> str:
    """The number of trials by status, and of epochs trained."""
    counts = Counter(trial.status for trial in trials)
    words = [f"{counts[status]} {status.replace('_', ' ')}" for status in TrialStatus if counts[status]]
    trained = [trial for trial in trials if trial.replayed_from is None]
    epochs = sum(trial.epochs for trial in trained)
    replays = f"; {len(trials) - len(trained)} replayed from known results" if len(trained) < len(trials) else ""
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
