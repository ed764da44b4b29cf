"""W9: unlike members. Members of twenty kinds of models, in one job, in a job for each kind, and one by one.

The kinds are perceptrons, residual ones and convolutions, attention, recurrent, depthwise and gated layers; the members
of a kind differ in their weights and learning rates. The seconds are those of the processor from the end of the first
epoch, in which units are formed, to the end of the last. Of those that the kinds save apart, one job should save most.
"""

import argparse
import random
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.merging.group import NEVER, Group, classification, draw
from benchmarks.merging.workloads.unlike import KINDS, build
from nasflow.config.search import DataConfig, MergeConfig, Target
from nasflow.job.events import Epoch, Event, Evicted
from nasflow.job.spec import JobSpec
from nasflow.merge.planning.cost_model import CostModel
from nasflow.merge.planning.planner import Planner
from nasflow.merge.trace.graph import trace
from nasflow.merge.trace.shape_inference import Spec
from nasflow.training.dry_run import rehearse
from nasflow.training.training_job import TrainingJob

ALONE, APART, TOGETHER = "one by one", "a job for each kind", "all in one job"
BATCH = 64


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command line."""
    parser.add_argument("--members", type=int, default=80, help="trials that are trained, as many of each kind")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS), metavar="KIND", help=", ".join(KINDS))
    parser.add_argument("--epochs", type=int, default=2, help="of each trial, at least two")
    parser.add_argument("--repeats", type=int, default=3, help="timed runs of each, one warm-up apart")
    parser.add_argument(
        "--seed", type=int, default=0, help="of the drawing of the learning rates and the trials' order"
    )


def make_group(kinds: list[str], members: int, epochs: int, seed: int) -> Group:
    """Return members of the kinds in a random order, on images of digits in batches of 64."""
    data = DataConfig(target="nasflow.evaluator.data:Digits", params={"batch_size": BATCH})
    space = Target(target="benchmarks.merging.workloads.unlike:build")
    drawn = draw(space, classification(data, epochs), members, seed)
    order = [kinds[number % len(kinds)] for number in range(members)]
    random.Random(seed).shuffle(order)
    chosen = [
        member.model_copy(update={"architecture": {**member.architecture, "kind": kind}})
        for member, kind in zip(drawn.members, order, strict=True)
    ]
    return replace(drawn, members=tuple(chosen))


def run(arguments: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    """Measure and show the results."""
    group = make_group(arguments.kinds, arguments.members, arguments.epochs, arguments.seed)
    whole = group.job("job", NEVER)
    by_kind = {
        kind: replace(group, members=tuple(m for m in group.members if m.architecture["kind"] == kind))
        for kind in arguments.kinds
    }
    jobs = {
        ALONE: [whole.model_copy(update={"merge": MergeConfig(fuse="never")})],
        APART: [members.job("job", NEVER) for members in by_kind.values()],
        TOGETHER: [whole],
    }
    seconds: dict[str, list[float]] = {name: [] for name in jobs}
    for _ in range(1 + arguments.repeats):
        for name, specs in jobs.items():
            seconds[name].append(sum(_cpu_seconds(spec, folder) for spec in specs))
    facts = {**_facts({name: values[1:] for name, values in seconds.items()}), **_planning(group, arguments.repeats)}
    units = _units(whole, group)
    _show(f"W9: {len(group)} members of {len(by_kind)} kinds, {group.epochs} epochs of digits", facts, units)
    return [{"facts": facts, "units": units, "seconds": seconds}]


def _cpu_seconds(spec: JobSpec, folder: Path) -> float:
    """Return the CPU seconds of a job after the first epoch. Raises RuntimeError if a member fails."""
    at: dict[int, float] = {}

    def tell(event: Event) -> None:
        if isinstance(event, Evicted):
            raise RuntimeError(f"trial {event.trial} failed: {event.error}")
        if isinstance(event, Epoch):
            at[event.epoch] = time.process_time()

    with tempfile.TemporaryDirectory(dir=folder) as root:
        TrainingJob(spec, Path(root), tell).run()
    return at[max(at)] - at[1]


def _facts(seconds: dict[str, list[float]]) -> dict[str, float]:
    """Return medians, and the medians of the ratios within each repeat."""
    rows = list(zip(seconds[ALONE], seconds[APART], seconds[TOGETHER], strict=True))
    return {
        **{f"CPU seconds, {name}": statistics.median(values) for name, values in seconds.items()},
        f"{APART} over {ALONE}": statistics.median(alone / apart for alone, apart, _ in rows),
        f"{TOGETHER} over {ALONE}": statistics.median(alone / together for alone, _, together in rows),
        "share of the time that the kinds save apart": statistics.median(
            (a - together) / (a - apart) for a, apart, together in rows
        ),
    }


def _planning(group: Group, repeats: int) -> dict[str, float]:
    """Return the CPU seconds of forming units, with the costs of kernels already measured."""
    planner = Planner(costs=CostModel(torch.device("cpu")))
    x = Spec.batch(torch.zeros(BATCH, 1, 8, 8))
    taken = []
    for _ in range(repeats + 1):
        models = [build(lambda *_, kind=member.architecture["kind"]: kind) for member in group.members]
        graphs = [trace(model, x) for model in models]
        began = time.process_time()
        planner.partition([graphs], len(graphs), [True])
        taken.append(time.process_time() - began)
    return {"CPU seconds to choose units": statistics.median(taken[1:])}


def _units(spec: JobSpec, group: Group) -> list[str]:
    """Return the kinds of each unit's members, and those of the members that are in none."""
    kinds = {member.trial: str(member.architecture["kind"]) for member in group.members}
    plan = rehearse(spec)
    units = [_counted([kinds[trial] for trial in unit.trials]) for unit in plan.units]
    return sorted(units) + [f"alone: {_counted([kinds[trial] for trial in plan.reasons])}"] * bool(plan.reasons)


def _counted(kinds: list[str]) -> str:
    return ", ".join(f"{kinds.count(kind)} {kind}" for kind in sorted(set(kinds)))


def _show(title: str, facts: dict[str, float], units: list[str]) -> None:
    table = Table("", "", title=title)
    for name, value in facts.items():
        table.add_row(name, f"{value:.3f}")
    console = Console(width=150)
    console.print(table)
    for unit in units:
        console.print(f"  {unit}", highlight=False)
