"""The best trials as rows for programs, as Markdown, and as a table for the terminal."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from nasflow.config.search import Objective
from nasflow.pareto import pareto_ranks
from nasflow.report.text import architecture_text, markdown_table, plain_number, shown
from nasflow.trial import Trial, TrialStatus

if TYPE_CHECKING:
    from rich.table import Table


def leaderboard_rows(trials: Sequence[Trial], objectives: Sequence[Objective], limit: int) -> list[dict[str, Any]]:
    """Return one row per trial, safe for JSON (a number that is not finite becomes None).

    Args:
        trials: best first, as `Study.leaderboard` returns them.
        objectives: each has a column, as has each metric of test data. With several, the column `front` is the trial's
            Pareto front, from 1.
        limit: the most rows.
    """
    trials = trials[:limit]
    fronts = _fronts(trials, objectives)
    tests = sorted({name for trial in trials for name in trial.metrics if name.startswith("test_")})
    return [
        {
            "rank": rank,
            **({"front": front} if len(objectives) > 1 else {}),
            "trial": trial.number,
            "round": trial.round,
            **{objective.metric: plain_number(trial.metrics.get(objective.metric)) for objective in objectives},
            **{name: plain_number(trial.metrics.get(name)) for name in tests},
            "parameters": plain_number(trial.metrics.get("parameters")),
            "epochs": trial.epochs,
            "note": _note(trial),
            "architecture": architecture_text(trial.architecture),
        }
        for rank, (trial, front) in enumerate(zip(trials, fronts, strict=True), start=1)
    ]


def leaderboard_json(trials: Sequence[Trial], objectives: Sequence[Objective], limit: int) -> list[dict[str, Any]]:
    """Return the rows for a program: each has the whole architecture as a mapping, not the text for a table."""
    rows = leaderboard_rows(trials, objectives, limit)
    return [{**row, "architecture": dict(trial.architecture)} for row, trial in zip(rows, trials[:limit], strict=True)]


def leaderboard_markdown(trials: Sequence[Trial], objectives: Sequence[Objective], limit: int) -> str:
    """Return the rows as a Markdown table under a heading."""
    table = markdown_table(leaderboard_rows(trials, objectives, limit))
    return f"## Leaderboard\n\n{_goal(objectives)}\n\n{table or 'No trial has a score yet.'}"


def leaderboard_table(trials: Sequence[Trial], objectives: Sequence[Objective], limit: int) -> "Table":
    """Return the rows as a table for a terminal, each on one line; long architectures are cut."""
    from rich import box  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    table = Table(title=f"leaderboard: {_goal(objectives)}", box=box.SIMPLE_HEAD)
    rows = leaderboard_rows(trials, objectives, limit)
    names = [name for name in (rows[0] if rows else []) if name != "note" or any(row["note"] for row in rows)]
    for name in names or ["no trial has a score yet"]:
        words = name in ("note", "architecture")
        justify: Literal["left", "right"] = "left" if words else "right"
        table.add_column(Text(name), justify=justify, no_wrap=not words)  # only columns that may wrap are narrowed
    for row in rows:
        table.add_row(*(Text(shown(row[name]), no_wrap=True, overflow="ellipsis") for name in names))
    return table


def _fronts(trials: Sequence[Trial], objectives: Sequence[Objective]) -> list[int | None]:
    """The Pareto front of each trial, from 1; None without a score or with a single objective."""
    if len(objectives) == 1:
        return [None] * len(trials)
    scored = [
        index
        for index, trial in enumerate(trials)
        if all(math.isfinite(trial.metrics.get(o.metric, math.nan)) for o in objectives)
    ]
    points = [[o.to_loss(trials[index].metrics[o.metric]) for o in objectives] for index in scored]
    fronts: list[int | None] = [None] * len(trials)
    for index, rank in zip(scored, pareto_ranks(points), strict=True):
        fronts[index] = rank + 1
    return fronts


def _goal(objectives: Sequence[Objective]) -> str:
    return ", ".join(f"{objective.direction} {objective.metric}" for objective in objectives)


def _note(trial: Trial) -> str:
    notes = [] if trial.status is TrialStatus.TRAINED else [trial.status.replace("_", " ")]
    if trial.replayed_from is not None:
        notes.append(f"replayed from trial {trial.replayed_from}")
    return ", ".join(notes)
