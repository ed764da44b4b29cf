"""How the jobs of a round were merged, as Markdown."""

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from nasflow.report.text import markdown_cell, markdown_table, numbers_text

_UNITS = 50

Plan = Mapping[str, Any]
"""A `nasflow.job.events.Planned` as JSON: `units` with their members and numbers, and `alone` with the reasons."""

_DEFECT = """\
## Trials that would train differently when merged

This is a defect of nasflow, or of your own merge pass: please report it with this text. These trials train alone since
it was found. If that was before a trial's first epoch, its results are right."""


def plans_markdown(number: int, jobs: Mapping[str, Sequence[Plan]], differing: Mapping[int, str] | None = None) -> str:
    """Return a section for each job of round `number`.

    Args:
        jobs: all plans that each job reported, by its name: one at its start, others as trials came and went.
        differing: reasons by trial, for trials that a comparison found to differ; they get their own section.
    """
    sections = [f"# Merging in round {number}"]
    if differing:
        sections += [_DEFECT, _reasons(differing)]
    return "\n\n".join([*sections, *(_job(name, plans) for name, plans in jobs.items())])


def merging_sentence(jobs: Mapping[str, Sequence[Plan]]) -> str:
    """Return one line on how many trials were merged."""
    units = [unit for plans in jobs.values() for plan in plans for unit in plan["units"]]
    together = {member for unit in units for member in unit["members"]}
    everyone = together | {int(trial) for plans in jobs.values() for plan in plans for trial in plan["alone"]}
    return f"{len(together)} of {len(everyone)} trials merged into {len(units)} units, in {len(jobs)} jobs"


def unit_row(unit: Mapping[str, Any]) -> dict[str, Any]:
    """Return the row of one unit in a table."""
    merged, alone = (unit[key] and 1e3 * unit[key] for key in ("seconds", "seconds_alone"))
    return {
        "trials": numbers_text(unit["members"]),
        "members": len(unit["members"]),
        "operations fused": f"{unit['fused']} of {unit['operations']}",
        "gathers": unit["gathers"],
        "steps by kernel": ", ".join(f"{count} {kernel}" for kernel, count in unit["kernels"].items()),
        "expected ms a step": merged and f"{merged:.2f}",
        "one by one": alone and f"{alone:.2f}",
        "speed-up": f"{alone / merged:.1f}x" if merged and alone else None,
    }


def _job(name: str, plans: Sequence[Plan]) -> str:
    units = [unit for plan in plans for unit in plan["units"]]
    parts = [f"## {markdown_cell(name)}"]
    if units:
        rows = [unit_row(unit) for unit in units[:_UNITS]]
        more = f"\n\n… and {len(units) - _UNITS} more units" if len(units) > _UNITS else ""
        parts.append(markdown_table(rows) + more)
    reasons = {int(trial): reason for plan in plans for trial, reason in plan["alone"].items()}
    if reasons:
        parts.append("Not merged:\n\n" + _reasons(reasons))
    return "\n\n".join(parts)


def _reasons(reasons: Mapping[int, str]) -> str:
    """A Markdown list of the reasons, with their trials."""
    ordered = sorted(reasons, key=lambda trial: (reasons[trial], trial))
    return "\n".join(
        f"- trials {numbers_text(list(trials))}: {markdown_cell(reason)}"
        for reason, trials in groupby(ordered, key=reasons.__getitem__)
    )
