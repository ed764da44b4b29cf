"""`python -m tests.zoo`: see `--help`."""

import argparse
import logging
import sys
import tempfile
import time
import warnings
from collections.abc import Sequence
from pathlib import Path

import torch

from tests.zoo.runs import TOLERANCE, Fuse, Group, Result
from tests.zoo.spaces import ARCHITECTURES

MODES: tuple[Fuse, ...] = ("always", "measured")


def main(arguments: Sequence[str] | None = None) -> int:
    """Train the groups that the command line names; return 1 if merging changed one."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.zoo",
        description="Train four of each architecture merged and each by itself, in float64, and print what differs and "
        "how many operations were fused: all that can be (always), and with kernels drawn at random (drawn). Where one "
        "unit in the last place of its weights takes a model as far, first steps' gradients are compared instead.",
    )
    parser.add_argument("--only", metavar="NAME", nargs="+", choices=ARCHITECTURES, default=ARCHITECTURES)
    parser.add_argument("--reasons", action="store_true", help="say why members were merged with no other")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    for name in ("pytorch_lightning", "lightning.pytorch", "transformers"):
        logging.getLogger(name).setLevel(logging.ERROR)
    began, found = time.monotonic(), []
    say("| architecture | operations | fused: always | fused: drawn | difference: always | difference: drawn |")
    say("| --- | --- | --- | --- | --- | --- |")
    for name in options.only:
        with tempfile.TemporaryDirectory(prefix="nasflow-zoo-") as root:
            group = Group(name, Path(root))
            results = [group.compare(fuse) for fuse in MODES]
        found.append(results)
        say(row(name, results))
        if options.reasons:
            for reason in sorted({reason for result in results for reason in result.alone.values()}):
                say(f"alone: {reason}")
    differing = sum(any(result.difference > TOLERANCE for result in results) for results in found)
    operations, fused = (sum(getattr(results[0], name) for results in found) for name in ("operations", "fused"))
    gradients = sum(any(result.rounding for result in results) for results in found)
    say(f"{len(found)} architectures, {differing} differences; {fused} of {operations} operations fused where all are")
    say(f"{gradients} of them by the first step's gradients, for rounding alone takes them as far")
    say(f"{time.monotonic() - began:.0f} s, of CPU time {time.process_time():.0f} s")
    return 1 if differing else 0


def row(name: str, results: Sequence[Result]) -> str:
    """Return a line of the table."""
    cells = [name, str(results[0].operations), *(str(result.fused) for result in results)]
    for result in results:
        cell = f"{result.difference:.0e}" + f" at {result.where}" * (result.difference > TOLERANCE)
        cells.append(cell + f" of first gradients: by rounding {result.rounding:.0e}" * bool(result.rounding))
    return f"| {' | '.join(cells)} |"


def say(line: str) -> None:
    """Print without buffering, because a run takes minutes."""
    print(line, file=sys.stdout, flush=True)
