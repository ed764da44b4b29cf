"""Figures of the choices: their importance, and parallel coordinates."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from nasflow.config.search import Objective
from nasflow.report.html.data import Figure
from nasflow.report.html.plot import PLAIN, SERIES, axis, figure, short, thinned, words
from nasflow.report.text import value_text
from nasflow.space.domain import Categorical, Domain, FloatDomain, IntDomain
from nasflow.trial import Trial

MOST_LINES = 1_000
MOST_AXES = 14
_MOST_OPTIONS = 24  # ticks of an axis
_MOST_BARS = 30
_ABSENT = "none"


def importance_figure(shares: Mapping[str, Mapping[str, float]]) -> Figure:
    """Return a bar chart with one bar for each label and objective.

    Args:
        shares: for each objective's metric, the share of each label, the largest first.
    """
    labels = list(next(iter(shares.values())))[:_MOST_BARS][::-1]  # Plotly's first bar is the lowest
    data = [
        {
            "type": "bar",
            "orientation": "h",
            "name": words(metric),
            "marker": {"color": PLAIN if len(shares) == 1 else SERIES[place % len(SERIES)]},
            "x": [of_metric.get(label, 0.0) for label in labels],
            "y": [words(label) for label in labels],
            "hovertemplate": "%{y}: %{x:.1%}<extra></extra>",
        }
        for place, (metric, of_metric) in enumerate(shares.items())
    ]
    height = 90 + (22 + 10 * (len(shares) - 1)) * len(labels)
    share = axis("share", tickformat=".0%", rangemode="tozero")
    names = axis("", type="category", tickvals=data[0]["y"], ticktext=[short(label) for label in labels])
    return figure(data, height, xaxis=share, yaxis=names, showlegend=len(shares) > 1)


def parallel_figure(
    trials: Sequence[Trial], objectives: Sequence[Objective], domains: Mapping[str, Domain], labels: Sequence[str]
) -> Figure:
    """Return parallel coordinates: each trial's line goes through its choices to its objectives.

    The first objective gives the color. If a trial lacks a label, its line passes below the values of that axis.

    Args:
        trials: scored trials. If there are more than MOST_LINES, that many are shown, including the best hundred.
        objectives: the last axes.
        domains: the domain of each label.
        labels: the first axes, at most MOST_AXES.
    """
    shown = _sample(trials, objectives[0])
    axes = [_label_axis(label, domains[label], [trial.architecture for trial in shown]) for label in labels]
    axes += [_metric_axis(objective.metric, shown) for objective in objectives]
    best_is_low = objectives[0].direction == "minimize"
    line = {
        "color": [trial.metrics[objectives[0].metric] for trial in shown],
        "colorscale": "Viridis",
        "reversescale": best_is_low,
        "showscale": True,
        "colorbar": {"title": {"text": words(objectives[0].metric)}, "thickness": 12},
    }
    fonts = {font: {"color": "var(--text)", "size": 11} for font in ("labelfont", "tickfont", "rangefont")}
    trace = {"type": "parcoords", "dimensions": axes, "line": line, "labelangle": -15, **fonts}
    return figure([trace], 460, margin={"l": 70, "r": 70, "t": 90, "b": 30})


def _sample(trials: Sequence[Trial], objective: Objective) -> list[Trial]:
    """The trials to draw, worst first, because the last lines are on top."""
    ordered = sorted(trials, key=lambda trial: (-objective.to_loss(trial.metrics[objective.metric]), trial.number))
    best = MOST_LINES // 10
    return [*thinned(ordered[:-best], MOST_LINES - best), *ordered[-best:]]


def _metric_axis(metric: str, trials: Sequence[Trial]) -> Figure:
    return {"label": words(metric), "values": [trial.metrics[metric] for trial in trials]}


def _label_axis(label: str, domain: Domain, architectures: Sequence[Mapping[str, Any]]) -> Figure:
    present = [architecture[label] for architecture in architectures if label in architecture]
    if isinstance(domain, FloatDomain | IntDomain):
        return _number_axis(label, domain, architectures)
    options = list(domain.options) if isinstance(domain, Categorical) else present
    texts = list(dict.fromkeys(map(value_text, options)))
    numbers = [float(each) for each in options if isinstance(each, int | float) and not isinstance(each, bool)]
    if len(numbers) == len(options) and len(texts) > _MOST_OPTIONS:
        return _number_axis(label, FloatDomain(min(numbers), max(numbers)), architectures)
    places = {text: place for place, text in enumerate(texts)}
    values = [places[value_text(each[label])] if label in each else -1 for each in architectures]
    ticks = [(_ABSENT, -1)] * (-1 in values) + thinned(list(places.items()), _MOST_OPTIONS)
    return _axis(label, values, ticks)


def _number_axis(label: str, domain: FloatDomain | IntDomain, architectures: Sequence[Mapping[str, Any]]) -> Figure:
    def height(number: float) -> float:
        return math.log10(number) if domain.log else float(number)

    low, high = height(domain.low), height(domain.high)
    below = low - 0.1 * ((high - low) or 1.0)
    values = [height(each[label]) if label in each else below for each in architectures]
    marks = [low + step * (high - low) / 4 for step in range(5)]
    if isinstance(domain, IntDomain) and domain.size() <= _MOST_OPTIONS:
        marks = [height(number) for number in domain.values()]
    ticks = [(_ABSENT, below)] * (below in values)
    ticks += [(f"{10**mark:.3g}" if domain.log else f"{mark:.4g}", mark) for mark in marks]
    return _axis(label, values, ticks)


def _axis(label: str, values: Sequence[float], ticks: Sequence[tuple[str, float]]) -> Figure:
    texts, places = zip(*ticks, strict=True)
    ends = [min(places), max(places)]
    if ends[0] == ends[1]:
        ends = [ends[0] - 1, ends[1] + 1]
    marks = {"tickvals": places, "ticktext": [short(text) for text in texts], "range": ends}
    return {"label": short(label), "values": values, **marks}
