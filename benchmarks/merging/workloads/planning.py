"""planning: the time to trace, rewrite and assemble members of 200 operations each, from 32 to 256 of them.

Every repeat builds other models of the space: a whole model is always new, but its blocks are not, as in a search.
The costs of kernels are already measured.
"""

import argparse
import math
import random
import statistics
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import nn

from benchmarks.merging.workloads.spaces import Residual
from nasflow.merge.planning.cost_model import CostModel
from nasflow.merge.planning.planner import Planner
from nasflow.merge.run.merged_model import MergedModel
from nasflow.merge.trace.graph import trace
from nasflow.merge.trace.shape_inference import Spec
from nasflow.system.gc_control import uncollected

BLOCKS = 49
CHANNELS = 8


def build(rng: random.Random) -> nn.Module:
    """Return a network of 200 operations: 49 residual blocks of random kernel size and activation."""

    def block() -> nn.Module:
        size = rng.choice([1, 3, 5])
        convolution = nn.Conv2d(CHANNELS, CHANNELS, size, padding=size // 2)
        return Residual(convolution, nn.BatchNorm2d(CHANNELS), rng.choice([nn.ReLU, nn.GELU, nn.Tanh])())

    stem = nn.Conv2d(1, CHANNELS, 3, padding=1)
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(CHANNELS, 10)]
    return nn.Sequential(stem, *(block() for _ in range(BLOCKS)), *head)


def plan_once(planner: Planner, models: list[nn.Module], x: torch.Tensor) -> dict[str, float]:
    """Plan one unit of all models. Return the CPU seconds of each part."""
    clock = time.process_time
    with uncollected():
        began = clock()
        graphs = [trace(model, Spec.batch(x)) for model in models]
        traced = clock()
        plan = planner.plan(graphs)
        planned = clock()
        streams = [nullcontext() for _ in models]
        generators = [torch.Generator() for _ in models]
        MergedModel(plan, streams, generators, lambda _, run: run())
        assembled = clock()
    return {
        "trace": traced - began,
        "passes": planned - traced,
        "assemble": assembled - planned,
        "total": assembled - began,
        "operations": sum(len(graph.nodes) for graph in graphs),
        "kernels": len(plan.batches),
    }


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command line."""
    parser.add_argument("--members", type=int, nargs="+", default=[32, 64, 128, 256])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)


def run(arguments: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    """Measure and show the results."""
    rng = random.Random(arguments.seed)
    planner = Planner(costs=CostModel(torch.device("cpu")))
    x = torch.rand(8, 1, 8, 8)
    results: list[dict[str, Any]] = []
    plan_once(planner, [build(rng) for _ in range(2)], x)  # measures kernels that have no costs yet
    for members in arguments.members:
        runs = [plan_once(planner, [build(rng) for _ in range(members)], x) for _ in range(arguments.repeats + 1)]
        medians = {name: statistics.median(run[name] for run in runs[1:]) for name in runs[0]}
        results.append({"members": members, "first": runs[0]["total"], **medians})
    table = Table(title="planning one unit of members of 200 operations, CPU seconds (medians)")
    for column in ("members", "operations", "kernels", "trace", "passes", "assemble", "total", "us an operation"):
        table.add_column(column, justify="right")
    for row in results:
        seconds = [f"{row[part]:.2f}" for part in ("trace", "passes", "assemble", "total")]
        each = f"{1e6 * row['total'] / row['operations']:.1f}"
        table.add_row(str(row["members"]), f"{row['operations']:.0f}", f"{row['kernels']:.0f}", *seconds, each)
    console = Console()
    console.print(table)
    if len(results) > 1:
        exponent = _exponent([(row["members"], row["total"]) for row in results])
        console.print(f"  grows with members to the power of {exponent:.2f}")
        results.append({"exponent": exponent})
    return results


def _exponent(points: list[tuple[int, float]]) -> float:
    """Return the slope of a straight line through the logarithms (least squares)."""
    xs, ys = [math.log(x) for x, _ in points], [math.log(y) for _, y in points]
    return statistics.linear_regression(xs, ys).slope
