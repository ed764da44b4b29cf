"""`python -m tests.faults`: see `--help`."""

import argparse
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TextIO

from tests.faults.campaign import Campaign, Report
from tests.faults.kinds import Fault
from tests.faults.services.all import ALL_KINDS, SERVICES, kinds_on


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a campaign as the command line says; 1 if anything was lost, repeated or left over."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.faults",
        description="Run real searches while processes are killed, files damaged and more, and count what is lost.",
    )
    parser.add_argument("--kills", type=int, default=20, help="faults to inject (default 20)")
    parser.add_argument("--seed", type=int, default=1, help="of which faults there are, and when (default 1)")
    parser.add_argument("--each", type=int, default=8, help="the most faults in a search (default 8)")
    parser.add_argument("--service", choices=list(SERVICES), help="run jobs there, and deal faults of that service")
    parser.add_argument("--only", metavar="KIND", choices=ALL_KINDS, help="one fault of this kind, with --seed its own")
    parser.add_argument("--kinds", metavar="KIND", nargs="+", choices=ALL_KINDS, help="deal these kinds only")
    parser.add_argument("--brief", action="store_true", help="short pauses, one kind of search")
    parser.add_argument("--table", action="store_true", help="print what survives what, as Markdown")
    parser.add_argument("--keep", metavar="DIR", type=Path, help="leave all files in this new folder")
    options = parser.parse_args(arguments)
    asked = {*(options.kinds or []), *([options.only] if options.only else [])}
    if strangers := sorted(asked - kinds_on(options.service).keys()):
        parser.error(f"not faults of {options.service or 'this machine'}: {', '.join(strangers)}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # with everything ended that it started
    with tempfile.TemporaryDirectory(prefix="nasflow-faults-") as temporary:
        folder = options.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        campaign = Campaign(
            folder.absolute(),
            _say(sys.stderr if options.table else sys.stdout),
            options.brief,
            options.kinds,
            options.service,
        )
        if options.only:
            report = campaign.strike(iter([Fault(options.only, options.seed)]), 1)
        else:
            report = campaign.run(options.kills, options.seed, options.each)
    sys.stdout.write((table(report) if options.table else summary(report)) + "\n")
    return 1 if report.bad or not report.kills else 0


def summary(report: Report) -> str:
    """The report for people."""
    verdicts = [verdict for _, verdict in report.verdicts]
    lines = [f"{report.kills.total()} faults in {len(verdicts)} searches:"]
    lines += [
        f"  {kind:20} {report.kills[kind]:4}{_where(report, kind)}" for kind in report.kinds if report.kills[kind]
    ]
    lines += [f"  {kind:20} not tried: {reason}" for kind, reason in report.lacking.items()]
    lines += [f"{text}: {number}" for text, number in _counts(report).items()]
    lines += [
        f"WRONG: {verdict}; struck by " + ", ".join(f"--only {fault.kind} --seed {fault.seed}" for fault in faults)
        for faults, verdict in report.bad
    ]
    return "\n".join([*lines, f"{report.seconds:.0f} s"])


def _where(report: Report, kind: str) -> str:
    """Where faults of a kind hit: in which searches, and at which third of their epochs."""
    configs = Counter(config for config, _ in report.places[kind])
    searches = ", ".join(f"{name} {number}" for name, number in sorted(configs.items()))
    return f"  {searches}; first, second, last third: {_thirds(report, kind)}"


def _thirds(report: Report, kind: str) -> str:
    """How many faults of a kind hit in the first, the second and the last third of their search's epochs."""
    thirds = Counter(min(2, int(3 * share)) for _, share in report.places[kind])
    return ", ".join(str(thirds[third]) for third in range(3))


def table(report: Report) -> str:
    """What survives what, as Markdown."""
    lines = [
        "| Fault | What happens | Lost at most | Seen, and in which third of the epochs |",
        "| --- | --- | --- | --- |",
    ]
    for name, kind in report.kinds.items():
        seen = report.lacking.get(name) or f"{report.kills[name]} times: {_thirds(report, name)}"
        lines.append(f"| {kind.fault} | {kind.happens} | {kind.lost} | {seen} |")
    counts = ", ".join(f"{text.lower()}: {number}" for text, number in _counts(report).items())
    total = f"{report.kills.total()} faults in {len(report.verdicts)} searches"
    return "\n".join([*lines, "", f"Of {total}, in {report.seconds:.0f} s: {counts}."])


def _counts(report: Report) -> dict[str, int]:
    verdicts = [verdict for _, verdict in report.verdicts]
    return {
        "Lost trials": sum(len(verdict.lost) for verdict in verdicts),
        "Duplicated metric rows": sum(verdict.duplicated for verdict in verdicts),
        "Epochs retrained beyond the one in flight per kill": sum(verdict.retrained for verdict in verdicts),
        "Leaderboards that differ from the undisturbed run": sum(verdict.differs for verdict in verdicts),
        "Processes left over": sum(len(verdict.left) for verdict in verdicts),
        "Files left over": sum(len(verdict.litter) for verdict in verdicts),
        "Other promises broken": sum(len(verdict.broken) for verdict in verdicts),
    }


def _say(stream: TextIO) -> Callable[[str], None]:
    begin = time.monotonic()

    def say(line: str) -> None:
        print(f"[{time.monotonic() - begin:6.1f} s] {line}", file=stream, flush=True)

    return say
