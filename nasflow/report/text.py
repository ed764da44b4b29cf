"""Words, numbers and Markdown that the reports share."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from nasflow.trial import Trial


def plain_number(value: float | None) -> float | int | None:
    """`value` as JSON can hold it: None if it is not finite, an int if it is a whole number beyond 1."""
    if value is None or not math.isfinite(value):
        return None
    return int(value) if abs(value) > 1 and value == int(value) else value


def shown(value: Any) -> str:
    """A value for people: five significant digits, long whole numbers with separators, nothing for None."""
    if value is None:
        return ""
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}" if abs(value) >= 10_000 else str(value)
    return f"{value:.5g}" if isinstance(value, float) else str(value)


def architecture_text(architecture: Mapping[str, Any], width: int = 200) -> str:
    """An architecture in one line of at most `width` characters, e.g. `depth=2, op0=conv3`."""
    text = ", ".join(f"{label}={value_text(value)}" for label, value in architecture.items())
    return text if len(text) <= width else text[: width - 1] + "…"


def numbers_text(numbers: Sequence[int]) -> str:
    """Trial numbers for people, runs drawn together: `0-5, 8`."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def error_headline(error: str | None, width: int = 200) -> str:
    """The line of an error text that says most: the first, or of a traceback the last."""
    lines = [line.strip() for line in (error or "").splitlines() if line.strip()]
    if not lines:
        return "no error text"
    headline = lines[-1] if lines[0].startswith("Traceback") else lines[0]
    return headline if len(headline) <= width else headline[: width - 1] + "…"


def failures_text(trials: Sequence[Trial], limit: int = 3) -> str:
    """The errors of trials in a line, at most `limit` of them, e.g. `trials 3, 7 (loss is nan)`; empty without any."""
    alike: dict[str, list[int]] = {}
    for trial in trials:
        if trial.error is not None:
            alike.setdefault(error_headline(trial.error), []).append(trial.number)
    shown = [f"trial{'s' * (len(some) > 1)} {numbers_text(some)} ({error})" for error, some in alike.items()]
    return ", ".join([*shown[:limit], *(["…"] if len(shown) > limit else [])])


def markdown_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows with equal keys as a Markdown table; the keys are its head."""
    if not rows:
        return ""
    lines = [list(rows[0]), ["---"] * len(rows[0]), *([shown(value) for value in row.values()] for row in rows)]
    return "\n".join("| " + " | ".join(markdown_cell(cell) for cell in line) + " |" for line in lines)


def markdown_cell(text: str) -> str:
    """`text` on one line, without what would end a cell or begin HTML."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def value_text(value: Any) -> str:
    """One choice of an architecture, e.g. `conv3`, `0.001` or `[a b]`."""
    if isinstance(value, list):
        return "[" + " ".join(value_text(item) for item in value) + "]"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
