"""`python -m tests.trust`: see `--help`."""

import argparse
import logging
import sys
import time
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from nasflow.merge.kernels.registry import KERNELS
from tests.trust.apart import EndedError, RaisedError, each
from tests.trust.case import Verdict, draw_case
from tests.trust.paths import PATHS
from tests.trust.shrink import as_code, judge, judged, shrink


@dataclass
class Report:
    """The outcome of many cases.

    Attributes:
        bad: the verdicts on those that differ, by number.
        met: how many cases ran each kernel and path.
        refused: how many members were in no unit with others, by reason.
    """

    cases: int = 0
    bad: dict[int, Verdict] = field(default_factory=dict)
    met: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)


def campaign(seed: int, first: int, cases: int, stop_after: int) -> Report:
    """Run cases, and stop after `stop_after` bad ones."""
    report = Report()
    for number, found in each(lambda one: judged(draw_case(seed, one)), range(first, first + cases)):
        if isinstance(found, RaisedError):
            raise found
        verdict = Verdict(differences=[str(found)]) if isinstance(found, EndedError) else found
        report.cases += 1
        report.met.update(verdict.paths.met)
        report.refused.update(verdict.refused)
        if verdict.differences:
            report.bad[number] = verdict
            say(f"case {number}: {len(verdict.differences)} differences, the first: {verdict.differences[0]}")
            if len(report.bad) == stop_after:
                break
    return report


def smallest(seed: int, report: Report) -> str:
    """Return the first bad case as code, with as little in it as still differs."""
    case = draw_case(seed, min(report.bad))
    return as_code(*shrink(case, judge(case)))


def summary(report: Report) -> str:
    """Return the report as text."""
    lines = [f"{report.cases} cases: {len(report.bad)} with differences"]
    lines += [f"  {name:20} {report.met[name]:5}" for name in [*(kernel.__name__ for kernel in KERNELS), *PATHS]]
    lines += [f"  members alone {count:5}: {why}" for why, count in report.refused.most_common()]
    return "\n".join(lines)


def say(text: str) -> None:
    """Print without buffering."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run cases as the command line says; 1 if a member that is merged differs from itself alone."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.trust",
        description="Train random models merged, by kernels drawn at random, and alone, and say where they differ.",
    )
    parser.add_argument("--cases", type=int, default=200, help="how many (default 200)")
    parser.add_argument("--seed", type=int, default=1, help="of what is drawn (default 1)")
    parser.add_argument("--first", type=int, default=0, help="the number of the first case (default 0)")
    parser.add_argument("--stop-after", type=int, default=0, metavar="N", help="end after N cases that differ")
    parser.add_argument("--no-shrink", action="store_true", help="do not look for the smallest model that differs")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    began = time.perf_counter()
    report = campaign(options.seed, options.first, options.cases, options.stop_after)
    say(f"{summary(report)}\n{time.perf_counter() - began:.0f} s")
    if report.bad and not options.no_shrink:
        say(f"\nThe smallest of case {min(report.bad)}:\n\n{smallest(options.seed, report)}")
    return 1 if report.bad or not report.cases else 0
