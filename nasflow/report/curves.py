"""Learning curves as a Plotly figure, and as Markdown with a small picture."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from nasflow.report.svg import curves_svg, markdown_picture
from nasflow.report.text import markdown_cell, markdown_table, plain_number

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

Curves = Mapping[int, Sequence[tuple[int, Mapping[str, float | None]]]]
"""Pairs of an epoch (from 1) and the metrics after it, by trial number."""

_COLUMNS = 12


def curves_figure(curves: Curves, metric: str) -> "Figure":
    """Return a figure with one line per trial. A metric that is not finite leaves a gap."""
    from plotly.graph_objects import Figure, Scatter  # noqa: PLC0415

    figure = Figure(layout={"xaxis": {"title": {"text": "epoch"}}, "yaxis": {"title": {"text": metric}}})
    for number, points in metric_points(curves, metric).items():
        epochs, values = zip(*points, strict=True)
        figure.add_trace(Scatter(x=epochs, y=values, mode="lines+markers", name=f"trial {number}"))
    return figure


def curves_markdown(curves: Curves, metric: str, limit: int = 10) -> str:
    """Return a picture and a table of the first `limit` trials with the metric, at up to 12 of the epochs with it."""
    points = dict(list(metric_points(curves, metric).items())[:limit])
    heading = f"## Learning curves: {markdown_cell(metric)}"
    if not points:
        return f"{heading}\n\nNo epoch has this metric yet."
    picture = markdown_picture(curves_svg(points, metric), "learning curves")
    present = sorted({epoch for line in points.values() for epoch, _ in line})
    places = sorted({round(step * (len(present) - 1) / (_COLUMNS - 1)) for step in range(_COLUMNS)})
    epochs = [present[place] for place in places]
    rows = [
        {"trial": number, **{f"epoch {epoch}": dict(line).get(epoch) for epoch in epochs}}
        for number, line in points.items()
    ]
    return f"{heading}\n\n{picture}\n\n{markdown_table(rows)}"


def metric_points(curves: Curves, metric: str) -> dict[int, list[tuple[int, float | None]]]:
    """Return pairs of an epoch that has the metric and its value, None if not finite, for every trial with a value.

    Epochs without validation (`evaluator.validate_every`) do not have its metrics.
    """
    lines = {
        number: [(epoch, plain_number(metrics[metric])) for epoch, metrics in points if metric in metrics]
        for number, points in curves.items()
    }
    return {number: line for number, line in lines.items() if any(value is not None for _, value in line)}
