"""Shared formatting of the reports: text, numbers and Markdown."""

import math
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from nasflow.trial import Trial


def plain_number(value: float | None) -> float | int | None:
    """Return a value for JSON: None if it is not finite, an int if it is a whole number above 1 in size."""
    if value is None or not math.isfinite(value):
        return None
    return int(value) if abs(value) > 1 and value == int(value) else value


def shown(value: Any) -> str:
    """Format a value: five significant digits, separators in large integers, an empty text for None."""
    if value is None:
        return ""
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}" if abs(value) >= 10_000 else str(value)
    return f"{value:.5g}" if isinstance(value, float) else str(value)


def architecture_text(architecture: Mapping[str, Any], width: int = 200) -> str:
    """Format an architecture as one line of at most `width` characters, e.g. `depth=2, op0=conv3`."""
    text = ", ".join(f"{label}={value_text(value)}" for label, value in architecture.items())
    return text if len(text) <= width else text[: width - 1] + "…"


def numbers_text(numbers: Sequence[int]) -> str:
    """Format trial numbers, with ranges for runs: `0-5, 8`."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def members_text(numbers: Sequence[int], of_trial: int = 1, name: str = "") -> str:
    """Format members that train trials: `0-2 (folds 1-3)`, `0-1 (fold 2), 4 (folds 1-2)`.

    Args:
        numbers: the members', counted through all trials.
        of_trial: members of each trial; with one, only trial numbers are shown.
        name: what one of several members is called.
    """
    if of_trial == 1:
        return numbers_text(numbers)
    alike: dict[tuple[int, ...], list[int]] = {}
    for trial, members in groupby(sorted(set(numbers)), lambda number: number // of_trial):
        alike.setdefault(tuple([number % of_trial + 1 for number in members]), []).append(trial)
    return ", ".join(
        f"{numbers_text(trials)} ({name}{'s' * (len(members) > 1)} {numbers_text(members)})"
        for members, trials in alike.items()
    )


def error_headline(error: str | None, width: int = 200) -> str:
    """Return the most useful line of an error text: the last one of a traceback, otherwise the first."""
    lines = [line.strip() for line in (error or "").splitlines() if line.strip()]
    if not lines:
        return "no error text"
    headline = lines[-1] if lines[0].startswith("Traceback") else lines[0]
    return headline if len(headline) <= width else headline[: width - 1] + "…"


def failures_text(trials: Sequence[Trial], limit: int = 3) -> str:
    """Format at most `limit` errors of trials as one line, e.g. `trials 3, 7 (loss is nan)`; empty without errors."""
    alike: dict[str, list[int]] = {}
    for trial in trials:
        if trial.error is not None:
            alike.setdefault(error_headline(trial.error), []).append(trial.number)
    shown = [f"trial{'s' * (len(some) > 1)} {numbers_text(some)} ({error})" for error, some in alike.items()]
    return ", ".join([*shown[:limit], *(["…"] if len(shown) > limit else [])])


def markdown_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Format rows with equal keys as a Markdown table; the keys are its head."""
    if not rows:
        return ""
    lines = [list(rows[0]), ["---"] * len(rows[0]), *([shown(value) for value in row.values()] for row in rows)]
    return "\n".join("| " + " | ".join(markdown_cell(cell) for cell in line) + " |" for line in lines)


def markdown_cell(text: str) -> str:
    """Put a text on one line and escape what would end a table cell, start HTML, or load an image."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;").replace("![", "!\\[")


def value_text(value: Any) -> str:
    """Format one choice of an architecture, e.g. `conv3`, `0.001` or `[a b]`."""
    if isinstance(value, list):
        return "[" + " ".join(value_text(item) for item in value) + "]"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
