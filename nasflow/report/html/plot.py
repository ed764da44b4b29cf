"""Shared parts of the HTML report's plots: layout, texts, and how many points they show."""

from collections.abc import Collection, Mapping, Sequence
from html import escape
from textwrap import wrap
from typing import Any, TypeVar

from nasflow.report.html.data import Figure
from nasflow.report.text import architecture_text
from nasflow.trial import Trial

T = TypeVar("T")

MOST_POINTS = 6_000
_LINE = 70
_SHORT = 32  # characters

BEST, PLAIN, FAINT, BAD, SECOND = "var(--best)", "var(--plain)", "var(--faint)", "var(--bad)", "var(--second)"
SERIES = [f"var(--series{number})" for number in range(10)]


def figure(data: Sequence[Mapping[str, Any]], height: int = 380, **layout: Any) -> Figure:
    """Return a figure in the page's colors; `height` is in pixels."""
    ground: dict[str, Any] = {
        "height": height,
        "margin": {"l": 64, "r": 16, "t": 40, "b": 48},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": "system-ui, sans-serif", "size": 12, "color": "var(--text)"},
        "hoverlabel": {"bgcolor": "var(--card)", "bordercolor": "var(--line)", "font": {"color": "var(--text)"}},
        "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0},
        "hovermode": "closest",
        "modebar": {"bgcolor": "rgba(0,0,0,0)", "color": "var(--faint)", "activecolor": "var(--dim)"},
    }
    return {"data": list(data), "layout": ground | layout}


def axis(title: str, **more: Any) -> dict[str, Any]:
    """Return an axis; the title is escaped."""
    lines = {"gridcolor": "var(--grid)", "zerolinecolor": "var(--grid)", "linecolor": "var(--line)"}
    return {"title": {"text": words(title)}, "automargin": True, **lines, **more}


def words(text: str) -> str:
    """Escape a text for Plotly, which otherwise takes `<` for a tag."""
    return escape(text, quote=False)


def short(text: str) -> str:
    """Escape a text like `words`, without the middle of a long one."""
    return words(text if len(text) <= _SHORT else text[: _SHORT // 2] + "…" + text[1 - _SHORT // 2 :])


def hover_text(*lines: str) -> str:
    """Return the text of a hover label; the lines are escaped."""
    return "<br>".join(map(words, lines))


def describe(trial: Trial, metrics: Collection[str]) -> str:
    """Return the hover label of a trial."""
    values = [f"{metric} {trial.metrics[metric]:.5g}" for metric in metrics if metric in trial.metrics]
    choices = wrap(architecture_text(trial.architecture), _LINE)
    return hover_text(f"trial {trial.number}, round {trial.round}", *values, *choices)


def thinned(items: Sequence[T], most: int) -> list[T]:
    """Return at most `most` items, spread evenly, including the first and the last."""
    if len(items) <= most:
        return list(items)
    return [items[round(place * (len(items) - 1) / (most - 1))] for place in range(most)]
