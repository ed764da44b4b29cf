"""`python -m tests.fuzz`: see `--help`."""

import argparse
import logging
import sys
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path

from tests.fuzz.campaign import Tally, campaign
from tests.fuzz.shrink import shrink
from tests.fuzz.targets import TARGETS

_SHOWN = 400


def summary(tallies: Sequence[Tally]) -> str:
    """Return the tallies as a table."""
    lines = [f"{'target':14}{'cases':>8}{'refused':>9}{'accepted':>10}{'findings':>10}{'slowest':>9}{'peak':>8}"]
    for tally in tallies:
        lines.append(
            f"{tally.target.name:14}{tally.cases:8}{tally.refused:9}{tally.accepted:10}{tally.found:10}"
            f"{tally.seconds:7.2f} s{tally.peak / 2**20:5.0f} MB"
        )
    return "\n".join(lines)


def findings(tallies: Sequence[Tally], folder: Path, seconds: float) -> str:
    """Return every finding with an input that is as small as the seconds allow; large inputs are put into a file."""
    texts = []
    for tally in tallies:
        for number, (kind, (data, outcome)) in enumerate(tally.findings.items()):
            small = shrink(tally.target, data, kind, seconds)
            shown = repr(small)
            if len(shown) > _SHOWN:
                file = folder / f"{tally.target.name.replace(' ', '-')}-{number}"
                file.write_bytes(small)
                shown = f"{len(small)} bytes in {file}"
            texts.append(f"{tally.target.name}: {kind}\n{outcome.finding}\ninput: {shown}")
    return "\n\n".join(texts)


def main(arguments: Sequence[str] | None = None) -> int:
    """Read damaged inputs as the command line says; 1 if one of them was neither read nor refused in a sentence."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz",
        description="Damage configs, ignore files, archives, host reports, events, checkpoints and URLs at random, and "
        "say which of them end in a traceback, take too long or too much memory, or reach outside of their folder.",
    )
    parser.add_argument("--seconds", type=float, default=60.0, help="how long, without shrinking (default 60)")
    parser.add_argument("--seed", type=int, default=1, help="of what is drawn (default 1)")
    parser.add_argument("--target", action="append", choices=[target.name for target in TARGETS], help="only this one")
    parser.add_argument("--no-shrink", action="store_true", help="do not look for smaller inputs")
    options = parser.parse_args(arguments)
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    targets = [target for target in TARGETS if options.target is None or target.name in options.target]
    tallies = campaign(targets, options.seed, 0, options.seconds)
    sys.stdout.write(f"{summary(tallies)}\n")
    found = any(tally.findings for tally in tallies)
    if found:
        folder = Path(tempfile.mkdtemp(prefix="nasflow-findings-"))
        sys.stdout.write(f"\n{findings(tallies, folder, 0.0 if options.no_shrink else 20.0)}\n")
    return 1 if found or not all(tally.cases for tally in tallies) else 0
