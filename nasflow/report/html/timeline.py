"""The time line of jobs: one row per slot, one bar per run of a job."""

import math
from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime, timedelta

from nasflow.report.html.data import Figure, JobRun, RunEnd
from nasflow.report.html.plot import axis, figure, hover_text, short
from nasflow.report.text import error_headline, numbers_text

MOST_RUNS = 2_000
_COLORS = {
    RunEnd.SUCCEEDED: "var(--good)",
    RunEnd.FAILED: "var(--bad)",
    RunEnd.LOST: "var(--second)",
    RunEnd.CANCELLED: "var(--faint)",
    RunEnd.RUNNING: "var(--best)",
}
_HATCHED = {"shape": "/", "fgcolor": "var(--card)", "size": 5}
_UNKNOWN = "unknown"


def timeline_figure(runs: Sequence[JobRun], now: datetime) -> Figure | None:
    """Return the newest MOST_RUNS runs, or None if there are none.

    A slot with several jobs at a time (of a host) has several lanes.
    """
    runs = sorted(runs, key=lambda run: (run.began, run.job))[-MOST_RUNS:]
    if not runs:
        return None
    lanes = _lanes(runs, now)
    rows = {lane: row for row, lane in enumerate(sorted(set(lanes)))}
    bars = defaultdict(list)
    for run, lane in zip(runs, lanes, strict=True):
        bars[run.end, run.retry].append((run, rows[lane]))
    data = [_bars(alike, end, retry, now) for (end, retry), alike in sorted(bars.items())]
    ticks = {slot: [row for lane, row in rows.items() if lane[0] == slot] for slot, _ in rows}
    sides = axis(
        "",
        tickvals=[sum(of_slot) / len(of_slot) for of_slot in ticks.values()],
        ticktext=[short(slot) for slot in ticks],
        autorange="reversed",
        showgrid=False,
        zeroline=False,
    )
    height = 130 + math.ceil(30 * len(rows) ** 0.9)
    return figure(data, height, xaxis=axis("", type="date"), yaxis=sides, barmode="overlay", bargap=0.15)


def _lanes(runs: Sequence[JobRun], now: datetime) -> list[tuple[str, int]]:
    """The slot of each run, and its lane: the first that is free when the run starts."""
    busy_until: dict[str, list[datetime]] = defaultdict(list)
    lanes = []
    for run in runs:
        slot = run.slot or _UNKNOWN
        ends = busy_until[slot]
        lane = next((place for place, end in enumerate(ends) if end <= run.began), len(ends))
        ends[lane : lane + 1] = [_end(run, now)]
        lanes.append((slot, lane))
    return lanes


def _end(run: JobRun, now: datetime) -> datetime:
    return run.ended or max(now, run.began)


def _bars(bars: Sequence[tuple[JobRun, int]], end: RunEnd, retry: bool, now: datetime) -> Figure:
    return {
        "type": "bar",
        "orientation": "h",
        "name": f"{end}{', a retry' if retry else ''}",
        "base": [run.began.isoformat(timespec="milliseconds") for run, _ in bars],
        "x": [1e3 * (_end(run, now) - run.began).total_seconds() for run, _ in bars],
        "y": [row for _, row in bars],
        "text": [_hover(run, now) for run, _ in bars],
        "textposition": "none",
        "hovertemplate": "%{text}<extra></extra>",
        "marker": {
            "color": _COLORS[end],
            "line": {"color": "var(--card)", "width": 1},
            **({"pattern": {**_HATCHED, "bgcolor": _COLORS[end]}} if retry else {}),
        },
    }


def _hover(run: JobRun, now: datetime) -> str:
    waited = run.began - run.submitted
    lines = [
        f"{run.job}: {run.end}{', a retry' if run.retry else ''}",
        f"trials {numbers_text(run.trials)}",
        f"{run.began:%Y-%m-%d %H:%M:%S} UTC, {seconds_text((_end(run, now) - run.began).total_seconds())}",
        *([f"waited {seconds_text(waited.total_seconds())} before"] if waited > timedelta(seconds=1) else []),
        *([error_headline(run.error, 120)] if run.error else []),
    ]
    return hover_text(*lines)


def seconds_text(seconds: float) -> str:
    """Format a duration, e.g. `0.4 s`, `3 min 20 s`, `5 h 3 min`, `2 d 4 h`."""
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    whole = round(seconds)
    for unit, size, smaller, part in (("d", 86_400, "h", 3_600), ("h", 3_600, "min", 60), ("min", 60, "s", 1)):
        if whole >= size:
            rest = whole % size // part
            return f"{whole // size} {unit}" + (f" {rest} {smaller}" if rest else "")
    return f"{whole} s"
