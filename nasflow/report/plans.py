"""How the jobs of a round were merged, as Markdown."""

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from nasflow.report.text import markdown_cell, markdown_table, numbers_text

_UNITS = 50

Plan = Mapping[str, Any]
"""A `nasflow.job.events.Planned` as JSON: `units` with their members and figures, and `alone` with the reasons."""


_DEFECT = """\
## Trials that merged would not have got what they get alone

This is a defect of nasflow, or of a merge pass of your own: please report it with this text. Since it was found these
trials train by themselves, so the results of those for which that was before their first epoch are right."""


def plans_markdown(number: int, jobs: Mapping[str, Sequence[Plan]], differing: Mapping[int, str] | None = None) -> str:
    """A section for each job of round `number`.

    Args:
        jobs: by the job's name, all plans that it told: one when it began, others as trials came and went.
        differing: the reasons of trials that a comparison has found to differ; they have a section of their own.
    """
    sections = [f"# Merging in round {number}"]
    if differing:
        sections += [_DEFECT, _reasons(differing)]
    return "\n\n".join([*sections, *(_job(name, plans) for name, plans in jobs.items())])


def merging_sentence(jobs: Mapping[str, Sequence[Plan]]) -> str:
    """How many trials were in units with others, in a line."""
    units = [unit for plans in jobs.values() for plan in plans for unit in plan["units"]]
    together = {member for unit in units for member in unit["members"]}
    everyone = together | {int(trial) for plans in jobs.values() for plan in plans for trial in plan["alone"]}
    return f"{len(together)} of {len(everyone)} trials in {len(units)} units of several, in {len(jobs)} jobs"


def unit_row(unit: Mapping[str, Any]) -> dict[str, Any]:
    """What is told of one unit."""
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
        parts.append("In no unit with others:\n\n" + _reasons(reasons))
    return "\n\n".join(parts)


def _reasons(reasons: Mapping[int, str]) -> str:
    """A list of them, by trial."""
    ordered = sorted(reasons, key=lambda trial: (reasons[trial], trial))
    return "\n".join(
        f"- trials {numbers_text(list(trials))}: {markdown_cell(reason)}"
        for reason, trials in groupby(ordered, key=reasons.__getitem__)
    )
