"""Figures of a search's progress: values by trial, learning curves, and Pareto fronts."""

from collections.abc import Iterator, Sequence
from itertools import accumulate

from nasflow.config.search import Objective
from nasflow.pareto import pareto_ranks
from nasflow.report.curves import metric_points
from nasflow.report.html.data import Figure, StudyFacts
from nasflow.report.html.plot import (
    BAD,
    BEST,
    FAINT,
    MOST_POINTS,
    PLAIN,
    SERIES,
    axis,
    describe,
    figure,
    hover_text,
    thinned,
)
from nasflow.report.text import error_headline
from nasflow.trial import Trial, TrialStatus

_TICKS = 12


def history_figures(facts: StudyFacts) -> list[Figure]:
    """Return a figure for each objective: the value of each trial and the best so far. Empty without a score."""
    return [_history(facts, objective) for objective in facts.config.objectives] if facts.scored else []


def curves_figure(facts: StudyFacts, named: int) -> Figure | None:
    """Return the learning curves of the first objective that has any.

    The first `named` curves have their own colors; all others are gray.
    """
    for objective in facts.config.objectives:
        if points := metric_points(facts.curves, objective.metric):
            return _curves(points, objective.metric, named)
    return None


def pareto_figures(facts: StudyFacts) -> list[Figure]:
    """Return figures of the first objective against each other one, with the trials on the Pareto front."""
    first, *others = facts.config.objectives
    trials = facts.scored
    if not others or not trials:
        return []
    metrics = [objective.metric for objective in facts.config.objectives]
    points = [[each.to_loss(t.metrics[each.metric]) for each in facts.config.objectives] for t in trials]
    ranks = pareto_ranks(points, enough=1)
    front = [trial for trial, rank in zip(trials, ranks, strict=True) if rank == 0]
    rest = [trial for trial, rank in zip(trials, ranks, strict=True) if rank]
    return [_pareto(first, other, front, thinned(rest, MOST_POINTS), metrics) for other in others]


def _history(facts: StudyFacts, objective: Objective) -> Figure:
    metrics = [each.metric for each in facts.config.objectives]
    best = list(_improvements(facts.scored, objective))
    trained = [trial for trial in facts.scored if trial.replayed_from is None]
    replayed = [trial for trial in facts.scored if trial.replayed_from is not None]
    last = facts.trials[-1].number
    plain = {"color": PLAIN, "size": 6, "opacity": 0.6}
    data = [
        _points("trials", thinned(trained, MOST_POINTS), objective, metrics, plain),
        {
            "type": "scatter",
            "name": "best so far",
            "mode": "lines",
            "line": {"color": BEST, "width": 2, "shape": "hv"},
            "x": [*(trial.number for trial in best), last],
            "y": [trial.metrics[objective.metric] for trial in (*best, best[-1])],
            "hoverinfo": "skip",
        },
        _points("new best", best, objective, metrics, {"color": BEST, "size": 8}),
    ]
    if replayed:
        hollow = {"color": PLAIN, "size": 7, "symbol": "circle-open"}
        shown = thinned(replayed, MOST_POINTS)
        data.insert(1, _points("known results replayed", shown, objective, metrics, hollow))
    if failed := [trial for trial in facts.trials if trial.status in (TrialStatus.FAILED, TrialStatus.INVALID)]:
        data.append(_failed(thinned(failed, MOST_POINTS)))
    below = {"overlaying": "y", "range": [0, 1], "visible": False, "fixedrange": True}
    return figure(data, xaxis=axis("trial"), yaxis=axis(objective.metric), yaxis2=below)


def _points(
    name: str, trials: Sequence[Trial], objective: Objective, metrics: Sequence[str], marker: dict[str, object]
) -> Figure:
    return {
        "type": "scatter",
        "name": name,
        "mode": "markers",
        "marker": marker,
        "x": [trial.number for trial in trials],
        "y": [trial.metrics[objective.metric] for trial in trials],
        "text": [describe(trial, metrics) for trial in trials],
        "hovertemplate": "%{text}<extra></extra>",
    }


def _failed(trials: Sequence[Trial]) -> Figure:
    """Crosses at the lower edge, because failed trials have no value."""
    return {
        "type": "scatter",
        "name": "failed",
        "mode": "markers",
        "marker": {"color": BAD, "size": 7, "symbol": "x-thin", "line": {"color": BAD, "width": 1.5}},
        "x": [trial.number for trial in trials],
        "y": [0.02] * len(trials),
        "yaxis": "y2",
        "text": [hover_text(f"trial {t.number} {t.status}", error_headline(t.error, 120)) for t in trials],
        "hovertemplate": "%{text}<extra></extra>",
    }


def _improvements(trials: Sequence[Trial], objective: Objective) -> Iterator[Trial]:
    """The trials that were better than all earlier ones."""
    best = list(accumulate((objective.to_loss(trial.metrics[objective.metric]) for trial in trials), min))
    for place, trial in enumerate(trials):
        if place == 0 or best[place] < best[place - 1]:
            yield trial


def _curves(points: dict[int, list[tuple[int, float | None]]], metric: str, named: int) -> Figure:
    lines = list(points.items())
    others = [[*line, (line[-1][0], None)] for _, line in lines[named:]]  # None: a gap between two curves
    joined = [point for line in others for point in line]
    data: list[Figure] = []
    if joined:
        data.append(
            {
                "type": "scatter",
                "name": f"{len(others)} others",
                "mode": "lines",
                "line": {"color": FAINT, "width": 1},
                "x": [epoch for epoch, _ in joined],
                "y": [value for _, value in joined],
                "hoverinfo": "skip",
            }
        )
    for place, (number, line) in enumerate(lines[:named]):
        data.append(
            {
                "type": "scatter",
                "name": f"trial {number}",
                "mode": "lines+markers",
                "line": {"color": SERIES[place % len(SERIES)], "width": 2},
                "marker": {"size": 4},
                "x": [epoch for epoch, _ in line],
                "y": [value for _, value in line],
                "hovertemplate": f"trial {number}, epoch %{{x}}: %{{y:.5g}}<extra></extra>",
            }
        )
    last = max(epoch for _, line in lines for epoch, _ in line)
    whole = {"dtick": 1} if last <= _TICKS else {}
    return figure(data, xaxis=axis("epoch", **whole), yaxis=axis(metric))


def _pareto(
    first: Objective, other: Objective, front: Sequence[Trial], rest: Sequence[Trial], metrics: Sequence[str]
) -> Figure:
    front = sorted(front, key=lambda trial: trial.metrics[other.metric])
    data = []
    for name, trials, color in ("dominated", rest, PLAIN), ("Pareto front", front, BEST):
        points = _points(name, trials, first, metrics, {"color": color, "size": 8 if trials is front else 6})
        data.append(points | {"x": [trial.metrics[other.metric] for trial in trials]})
    if len(metrics) == 2:  # with more objectives, the front is not a line in this plane
        data[-1] |= {"mode": "lines+markers", "line": {"color": BEST, "width": 1, "dash": "dot"}}
    return figure(data, xaxis=axis(other.metric), yaxis=axis(first.metric))
