"""The output of `nasflow plan`."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import groupby

import torch
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from nasflow.merge.view.summary import Price, Step
from nasflow.report.text import members_text
from nasflow.training.dry_run import JobPlan, UnitPlan
from nasflow.training.schedule.repeats import members_of

Names = Callable[[Sequence[int]], str]

_NUMBERS = ("#", "rows", "µs", "µs\nbatched", "µs one\nby one", "gathers")


def names_of(plan: JobPlan) -> Names:
    """Return what tells a plan's members by their trials, and if there are several of each, also which of them."""
    return partial(members_text, of_trial=plan.repeats, name=plan.member_name)


def print_plan(terminal: Console, name: str, trials: Sequence[int], plan: JobPlan) -> None:
    """Print a job's plan: its units step by step, trials in no unit and why, expected times and their source."""
    for part in _parts(name, trials, plan):
        terminal.print(part, soft_wrap=isinstance(part, Text))


def _parts(name: str, trials: Sequence[int], plan: JobPlan) -> Iterator[Table | Text]:
    threads = f", {_count(torch.get_num_threads(), 'thread')}" if plan.device == "cpu" else ""
    batch = "" if plan.batch is None else f", batches of {'x'.join(map(str, plan.batch))}"
    yield Text(f"{name}: {_counted(trials, plan)} in one job on {_where(plan)}{threads}{batch}", style="bold")
    for unit in plan.units:
        yield _table(unit, names_of(plan), plan.devices)
        yield from map(Text, _unit_lines(unit, names_of(plan)))
    yield from map(Text, _job_lines(trials, plan))


def _where(plan: JobPlan) -> str:
    return plan.device if plan.devices == 1 else f"{plan.devices} devices ({plan.device})"


def _table(unit: UnitPlan, names: Names, devices: int) -> Table:
    on = f" on device {unit.device}" if devices > 1 else ""
    title = f"\nunit of trials {names(unit.members)}{on}{f': {unit.part}' if unit.part else ''}"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=0, collapse_padding=True)
    for head in ("#", "operation", "shapes", "trials", "rows", "kernel", *_NUMBERS[2:], "why"):
        # rich narrows only columns that may wrap; each step stays on one line
        table.add_column(head, justify="right" if head in _NUMBERS else "left", no_wrap=head in _NUMBERS)
    for number, (step, price) in enumerate(zip(unit.outline.steps, unit.prices, strict=True)):
        table.add_row(*(Text(t, no_wrap=True, overflow="ellipsis") for t in _row(number, step, price, unit, names)))
    table.add_row("", "outputs", "", "all", *[""] * 5, str(unit.outline.output_gathers or ""), "")
    return table


def _row(number: int, step: Step, price: Price, unit: UnitPlan, names: Names) -> list[str]:
    whole = len(step.members) == len(unit.members)
    return [
        str(number),
        step.operation,
        step.shapes,
        "all" if whole else names([unit.members[member] for member in step.members]),
        "1" if step.kind in ("input", "shared") else str(len(step.members)),
        step.kernel,
        *("" if step.kind == "input" else _microseconds(s) for s in (price.seconds, price.batched, price.looped)),
        str(step.gathers or ""),
        step.reason,
    ]


def _unit_lines(unit: UnitPlan, names: Names) -> Iterator[str]:
    outline = unit.outline
    yield (
        f"{outline.fused} of {outline.operations} operations fused; {_count(outline.gathers, 'gather')}; expected "
        f"{_gain(unit.seconds, unit.alone)}"
    )
    shared = [step for step in outline.steps if step.kind == "shared"]
    for members, steps in groupby(shared, key=lambda step: step.members):
        of = names([unit.members[member] for member in members])
        yield f"computed once for trials {of}: {', '.join(step.operation for step in steps)}"


def _job_lines(trials: Sequence[int], plan: JobPlan) -> Iterator[str]:
    names = names_of(plan)
    for reason, numbers in _by_text(plan.reasons):
        yield f"in no unit with others: trials {names(numbers)}: {reason}"
    for error, numbers in _by_text({trial: error.partition("\n")[0] for trial, error in plan.failed.items()}):
        yield f"failed before the first step: trials {names(numbers)}: {error}"
    known = {*plan.reasons, *plan.failed, *(member for unit in plan.units for member in unit.members)}
    members = [member for trial in trials for member in members_of(trial, plan.repeats)]
    if waiting := [member for member in members if member not in known]:
        yield f"wait for a place in the job (merge.max_members): trials {names(waiting)}"
    if plan.units and plan.reasons:
        others = sum(plan.alone.values())
        merged, alone = (
            sum(seconds) + others for seconds in zip(*((u.seconds, u.alone) for u in plan.units), strict=True)
        )
        untraced = len(plan.reasons) - len(plan.alone)
        without = f", without the {untraced} that can't be traced" if untraced else ""
        yield f"the job as a whole{without}: expected {_gain(merged, alone)}"
    if plan.costs:
        path, measured = plan.costs[0].path, sum(costs.measured for costs in plan.costs)
        seconds = sum(costs.seconds for costs in plan.costs)
        source = f"{measured} of them were measured now, in {seconds:.1f} s" if measured else "none is new"
        yield f"times are of forward and backward, without the optimizer; {source}; they are kept in {path}"


def _by_text(texts: dict[int, str]) -> Iterator[tuple[str, list[int]]]:
    for text in dict.fromkeys(texts.values()):
        yield text, [trial for trial, other in texts.items() if other == text]


def _counted(trials: Sequence[int], plan: JobPlan) -> str:
    of_each = f" of {_count(plan.repeats, plan.member_name)} each" if plan.repeats > 1 else ""
    return f"{_count(len(trials), 'trial')}{of_each}"


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def _gain(merged: float, alone: float) -> str:
    return f"{1e3 * merged:.2f} ms a step instead of {1e3 * alone:.2f} ms one by one: {alone / merged:.1f}x"


def _microseconds(seconds: float | None) -> str:
    if seconds is None:
        return ""
    return f"{1e6 * seconds:.0f}" if seconds < float("inf") else "can't run"
