"""W1: mixed MLPs on digits. One width per model, depth 1 to 3, relu, gelu or tanh, Adam with its own learning rate.

Variant a has widths 16, 32, 48 and 64; variant b 16, 32, 64, 128 and 256. Wide members are bound by arithmetic.
"""

import argparse
from pathlib import Path
from typing import Any

from benchmarks.merging.contest import add_contest_arguments, contest
from benchmarks.merging.group import Group, classification, draw
from benchmarks.merging.workloads.spaces import NARROW, WIDE
from nasflow.config.search import DataConfig, Target

WIDTHS = {"a": NARROW, "b": WIDE}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command line."""
    add_contest_arguments(parser, members=32, epochs=10, sequential=0)
    parser.add_argument("--variant", choices=WIDTHS, default="a")


def make_group(variant: str, members: int, epochs: int, seed: int, **data: Any) -> Group:
    """Return the MLPs of a variant, on rows of digits in batches of 64."""
    space = Target(target="benchmarks.merging.workloads.spaces:mixed_mlp", params={"widths": list(WIDTHS[variant])})
    rows = DataConfig(**{"target": "nasflow.evaluator.data:DigitsRows", **data})
    return draw(space, classification(rows, epochs), members, seed)


def run(arguments: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    """Measure and show the results."""
    group = make_group(arguments.variant, arguments.members, arguments.epochs, arguments.seed)
    title = f"W1{arguments.variant}: {len(group)} mixed MLPs, {group.epochs} epochs of digits"
    report = contest(title, group, arguments, folder)
    report.show()
    return [report.as_json()]
