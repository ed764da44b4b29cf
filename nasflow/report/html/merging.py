"""How trials were merged, and the expected gain."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from nasflow.report.html.data import Figure
from nasflow.report.html.plot import BEST, FAINT, axis, figure, thinned, words
from nasflow.report.plans import Plan, merging_sentence, unit_row
from nasflow.report.text import numbers_text

MOST_UNITS = 60
_REASONS = 20


def speed_up(plans: Mapping[str, Sequence[Plan]]) -> float | None:
    """Return the expected speed-up of the units over their members one by one; None if nothing was measured."""
    measured = [unit for unit in _units(plans) if unit["seconds"] and unit["seconds_alone"]]
    if not measured:
        return None
    return float(sum(unit["seconds_alone"] for unit in measured) / sum(unit["seconds"] for unit in measured))


def merging_summary(plans: Mapping[str, Sequence[Plan]]) -> str:
    """Return one or two sentences on how many trials were merged, and the expected speed-up."""
    faster = speed_up(plans)
    gain = f" Expected from measured kernels: {faster:.2f} times as fast as one by one." if faster else ""
    return f"{merging_sentence(plans)}.{gain}"


def merging_rows(plans: Mapping[str, Sequence[Plan]]) -> list[dict[str, Any]]:
    """Return one row per unit: at most MOST_UNITS, spread over the study."""
    rows = [
        {"job": name, **unit_row(unit)} for name, of_job in plans.items() for plan in of_job for unit in plan["units"]
    ]
    return thinned(rows, MOST_UNITS)


def alone_rows(plans: Mapping[str, Sequence[Plan]]) -> list[dict[str, Any]]:
    """Return the reasons why trials were not merged, the most frequent first."""
    reasons = {
        int(trial): reason for of_job in plans.values() for plan in of_job for trial, reason in plan["alone"].items()
    }
    counts = Counter(reasons.values()).most_common(_REASONS)
    return [
        {"trials": count, "which": _some([t for t, why in reasons.items() if why == reason]), "reason": reason}
        for reason, count in counts
    ]


def merging_figure(plans: Mapping[str, Sequence[Plan]]) -> Figure | None:
    """Return the milliseconds of each unit's step, merged and one by one; None if nothing was measured."""
    units = [
        (f"{name}: {numbers_text(unit['members'])}", unit)
        for name, of_job in plans.items()
        for plan in of_job
        for unit in plan["units"]
        if unit["seconds"] and unit["seconds_alone"]
    ]
    if not units:
        return None
    shown = thinned(units, MOST_UNITS)
    data = [
        {
            "type": "bar",
            "name": name,
            "marker": {"color": color},
            "x": list(range(len(shown))),
            "y": [1e3 * unit[key] for _, unit in shown],
            "text": [words(title) for title, _ in shown],
            "textposition": "none",
            "hovertemplate": f"%{{text}}<br>{name}: %{{y:.2f}} ms a step<extra></extra>",
        }
        for name, key, color in (("one by one", "seconds_alone", FAINT), ("merged", "seconds", BEST))
    ]
    titles = axis("unit", showticklabels=False)
    return figure(data, 300, barmode="group", xaxis=titles, yaxis=axis("ms a step (expected)"))


def _units(plans: Mapping[str, Sequence[Plan]]) -> list[Mapping[str, Any]]:
    return [unit for of_job in plans.values() for plan in of_job for unit in plan["units"]]


def _some(numbers: Sequence[int]) -> str:
    return numbers_text(numbers[:40]) + (", …" if len(numbers) > 40 else "")
