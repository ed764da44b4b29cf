"""What the plots of the HTML report share: their ground, their words, and how many points they show."""

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
    """A figure on the page's own ground."""
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
    """An axis with a title of the user's words."""
    lines = {"gridcolor": "var(--grid)", "zerolinecolor": "var(--grid)", "linecolor": "var(--line)"}
    return {"title": {"text": words(title)}, "automargin": True, **lines, **more}


def words(text: str) -> str:
    """A text as Plotly shows it as it is: in its own, `<` begins a tag."""
    return escape(text, quote=False)


def short(text: str) -> str:
    """A text as `words`, with the middle left out where there is little room."""
    return words(text if len(text) <= _SHORT else text[: _SHORT // 2] + "…" + text[1 - _SHORT // 2 :])


def told(trial: Trial, metrics: Collection[str]) -> str:
    """A trial for a hover label."""
    values = [f"{metric} {trial.metrics[metric]:.5g}" for metric in metrics if metric in trial.metrics]
    lines = [f"trial {trial.number}, round {trial.round}", *values, *wrap(architecture_text(trial.architecture), _LINE)]
    return "<br>".join(map(words, lines))


def thinned(items: Sequence[T], most: int) -> list[T]:
    """At most so many of the items, spread evenly, the first and the last among them."""
    if len(items) <= most:
        return list(items)
    return [items[round(place * (len(items) - 1) / (most - 1))] for place in range(most)]
