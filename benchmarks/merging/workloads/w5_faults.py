"""W5: faults. W2's cell networks, one of which fails, at 95 % of its training unless it diverges from the start.

A member `diverge`s by a learning rate of 1e30 (behind batch-norm 1e6 stays finite), turns to `nan`, `raise`s, asks for
2**52 bytes of `memory`, or ends the process (`exit`). The last is run by `nasflow run` with the local service; the
others as a job in this process, and the failed member again alone, as the flow does, until it fails the same way twice.
Work is counted in optimizer steps, including lost ones, and compared with the steps of a run without the fault. In that
run the member has the same model, but its failing module stays idle, because other models would change the plan.
"""

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from rich.table import Table

from benchmarks.merging.contestants import accuracies_of, run_job
from benchmarks.merging.group import LEARNING_RATES, Group, classification
from benchmarks.merging.report import print_table, show_facts
from benchmarks.merging.workloads import w2_cells
from benchmarks.merging.workloads.w5_crash import run_crash
from benchmarks.merging.workloads.w5_outcome import ABSURD_RATE, Ran, changed, guilty, summary, with_fault
from nasflow.config.search import OptimizerConfig
from nasflow.config.values import FloatRange
from nasflow.job.events import Evicted

INSIDE = ("diverge", "nan", "raise", "memory")
_RETRIES = 2  # alone, before the flow sees that a failure repeats itself
_DETECTION = ("aten::isfinite", "aten::isnan", "aten::isinf", "aten::is_nonzero", "aten::_foreach_norm")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command line."""
    parser.add_argument("--members", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--channels", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--faults", nargs="+", choices=[*INSIDE, "exit"], default=[*INSIDE, "exit"], metavar="KIND")


def make_group(channels: int, members: int, epochs: int, seed: int) -> Group:
    """Return W2's members, each with the fault `none`."""
    group = w2_cells.make_group(channels, members, epochs, seed)
    steps = len(group.load().train) * epochs  # type: ignore[arg-type]
    params = {**group.space.params, "fault_step": int(0.95 * steps)}
    wide = OptimizerConfig(name="adam", lr=FloatRange(float=(LEARNING_RATES[0], ABSURD_RATE), log=True))
    evaluator = classification(group.evaluator.data, epochs).model_copy(update={"optimizer": wide})
    healthy = tuple(changed(member, fault="none") for member in group.members)
    return replace(group, space=group.space.model_copy(update={"params": params}), evaluator=evaluator, members=healthy)


def run(arguments: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    """Run the job without a fault, then with each fault, and show the results of the other members."""
    group = make_group(arguments.channels, arguments.members, arguments.epochs, arguments.seed)
    group = with_fault(group, "idle")
    clean = folder / "clean"
    accuracies_of(run_job(group.job("clean"), clean))
    results = []
    for kind in arguments.faults:
        if kind == "exit":
            results.append(run_crash(group, folder))
        else:
            results.append(run_inside(group, kind, clean, folder / kind))
    _show(group, results)
    detection = detection_share(replace(group, evaluator=group.evaluator.model_copy(update={"epochs": 1})), folder)
    show_facts({"detection share of operator time": detection})
    return [{"title": "W5", "faults": results, "detection_share": detection}]


def run_inside(group: Group, kind: str, clean: Path, root: Path) -> dict[str, Any]:
    """Run a fault that does not end the process."""
    faulty = with_fault(group, kind)
    ran = [Ran(spec := faulty.job("all"), run_job(spec, root))]
    failed = [event.trial for event in ran[0].events if isinstance(event, Evicted)]
    if failed != [guilty(group)]:
        raise RuntimeError(f"{kind}: the trials that failed are {failed}, and should be {[guilty(group)]}")
    for retry in range(_RETRIES):
        alone = replace(faulty, members=(faulty.members[guilty(group)],))
        ran.append(Ran(spec := alone.job(f"alone-{retry}"), run_job(spec, root)))
    return summary(kind, group, ran, clean, root)


def detection_share(group: Group, folder: Path) -> float:
    """Return the share of the time in torch's operators that is spent on checks for non-finite values."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        run_job(group.job("profiled"), folder / "profiled")
    averages = profile.key_averages()
    looking = sum(entry.cpu_time_total for entry in averages if entry.key in _DETECTION)
    return float(looking / sum(entry.self_cpu_time_total for entry in averages))


def _show(group: Group, results: list[dict[str, Any]]) -> None:
    heads = ["survivors trained", "bit-identical", "accuracy differs by", "work", "work if all began anew", "jobs"]
    table = Table("fault", *heads, title=f"W5: {len(group)} members, {group.epochs} epochs, one member fails")
    for result in results:
        of = f"of {result['survivors']}"
        table.add_row(
            result["fault"],
            f"{result['survivors_trained']} {of}",
            f"{result['survivors_bit_identical']} {of}",
            f"{result['largest_difference_of_accuracy']:.4f}",
            f"{result['work']:.3f}",
            f"{result['work_of_starting_all_over']:.2f}",
            str(result["jobs"]),
        )
    print_table(table)
