"""How busy a cluster's slots are with trials of unlike length, and what overlapping rounds cost in regret.

`python -m benchmarks.slots` simulates searches in virtual time, with the controller's own queue of jobs: for each
number of slots, each spread of lengths (1:1, 1:10, 1:30, log-uniform, within 10 % of what is expected of them) and
each `budget.rounds_ahead`. Of the trials 3 % fail half way and are retried alone. It prints the share of slot time in
training, of the whole search and until its last job began: what remains is the end, when there is no work left.
`before` is as it was before there were rounds ahead: jobs in the order of proposals, retries after all other jobs of
a round. `--gantt FILE.svg` draws the searches of the most slots and a spread of 1:10.

`--real` runs real searches in real time instead (Prefect, study, strategy, controller), on a simulated cluster whose
jobs take their time and compute nothing. On a busy machine these wait for the controller.

`--kill` kills such searches with SIGKILL at several points, runs them again, and compares their proposals with those
of a search that nobody disturbed; exit code 1 if they differ.

`--regret SEARCHES` asks the strategies on a recorded table of results instead (cells on digits, three seeds, all
epochs): the accuracy that the best trial lacks to the best of the table, with 0, 1 and 2 rounds ahead.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict
from itertools import product
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.commands import PrefectServer
from benchmarks.slots.cluster import Bar
from benchmarks.slots.gantt import draw
from benchmarks.slots.regret import regrets
from benchmarks.slots.search import Setting, busy_shares
from benchmarks.slots.virtual import Model, VirtualSearch
from nasflow.study.study import Study

SPREADS = (1, 10, 30)
AHEAD = (0, 1, 2)
_DRAWN = 10  # the spread of the picture


def start(setting: Setting, folder: Path, server: PrefectServer) -> subprocess.Popen[bytes]:
    """Start a search, or go on with the one in the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "benchmarks.slots.search", str(folder), json.dumps(asdict(setting))]
    with (folder / "log").open("ab") as log:
        return subprocess.Popen(command, env={**os.environ, **server.environment}, stdout=log, stderr=log)


def run(setting: Setting, folder: Path, server: PrefectServer) -> Sequence[Bar]:
    """Run a search to its end and return what the slots did. Raises RuntimeError if it failed."""
    if start(setting, folder, server).wait():
        raise RuntimeError(f"{setting} failed:\n{(folder / 'log').read_text()[-3000:]}")
    return [Bar(**bar) for bar in json.loads((folder / "bars.json").read_text())]


def proposals(folder: Path) -> list[tuple[int, str]]:
    """Return round and architecture of each trial of a search."""
    with closing(Study.load(f"sqlite:///{folder / 'nasflow.db'}", "slots")) as study:
        return [(trial.round, trial.architecture.to_json()) for trial in study.trials()]


def simulated(options: argparse.Namespace) -> dict[tuple[int, int, str], Sequence[Bar]]:
    """Return what the slots did in virtual time, by slots, spread, and name of the column."""
    columns = {"before": {"plain": True}} | {f"k = {ahead}": {"ahead": ahead} for ahead in options.ahead}
    sizes = {"rounds": options.rounds, "per_slot": options.per_slot, "seconds": options.seconds}
    return {
        (slots, spread, name): VirtualSearch(Model(slots, spread, **sizes, **column)).run()
        for slots, spread, (name, column) in product(options.slots, options.spreads, columns.items())
    }


def real(options: argparse.Namespace, folder: Path, server: PrefectServer) -> dict[tuple[int, int, str], Sequence[Bar]]:
    """Return what the slots did in real searches, by slots, spread, and name of the column."""
    settings = {
        (slots, spread, f"k = {ahead}"): Setting(
            slots, spread, ahead, options.rounds, options.per_slot, options.seconds
        )
        for slots, spread, ahead in product(options.slots, options.spreads, options.ahead)
    }
    with ThreadPoolExecutor(options.parallel) as pool:
        names = [folder / f"{number}" for number in range(len(settings))]
        found = pool.map(lambda setting, name: run(setting, name, server), settings.values(), names)
        return dict(zip(settings, found, strict=True))


def show(options: argparse.Namespace, found: dict[tuple[int, int, str], Sequence[Bar]]) -> None:
    """Print a table and one line of JSON, and draw."""
    shares = {key: busy_shares(bars, key[0]) for key, bars in found.items()}
    columns = list(dict.fromkeys(name for *_, name in found))
    title = "share of slot time in training (in brackets: until the last job began)"
    table = Table("slots", "lengths", *columns, title=title)
    for slots, spread in product(options.slots, options.spreads):
        cells = [shares[slots, spread, name] for name in columns]
        table.add_row(str(slots), f"1:{spread}", *(f"{whole:.1%} ({begun:.1%})" for whole, begun in cells))
    Console(width=None if sys.stdout.isatty() else 120).print(table)
    if options.gantt:
        most = max(options.slots)
        options.gantt.write_text(draw({name: found[most, _DRAWN, name] for name in columns}, most))
    results = [
        {"slots": slots, "spread": spread, "column": name, "busy": both}
        for (slots, spread, name), both in shares.items()
    ]
    print(json.dumps({"load_average": os.getloadavg(), "results": results}))


def kills(options: argparse.Namespace, folder: Path, server: PrefectServer, console: Console) -> bool:
    """Kill searches and compare what they propose. Returns whether it was always the same."""
    same = True
    for strategy, ahead in product(("evolution", "tpe", "random"), [k for k in options.ahead if k]):
        setting = Setting(
            min(options.slots), _DRAWN, ahead, options.rounds, options.per_slot, options.seconds, strategy
        )
        undisturbed = folder / f"{strategy}-{ahead}"
        began = time.monotonic()
        run(setting, undisturbed, server)
        seconds = time.monotonic() - began
        killed = folder / f"{strategy}-{ahead}-killed"
        points = 0
        for share in (0.3, 0.45, 0.6):
            search = start(setting, killed, server)
            try:
                search.wait(share * seconds)
            except subprocess.TimeoutExpired:
                search.send_signal(signal.SIGKILL)
                search.wait()
                points += 1
        run(setting, killed, server)
        equal = proposals(killed) == proposals(undisturbed)
        same = same and equal
        console.print(
            f"{strategy}, k = {ahead}: killed {points} times, {len(proposals(killed))} proposals: "
            f"{'the same' if equal else 'DIFFERENT'}"
        )
    return same


def show_regrets(searches: int) -> None:
    """Print the regrets."""
    table = Table("strategy", *(f"k = {ahead}" for ahead in AHEAD), title="mean regret, in percent of accuracy")
    for strategy in ("evolution", "tpe"):
        cells = [regrets(strategy, ahead, searches) for ahead in AHEAD]
        table.add_row(strategy, *(f"{100 * mean:.3f} ± {100 * error:.3f}" for mean, error in cells))
    Console(width=None if sys.stdout.isatty() else 120).print(table)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--slots", type=int, nargs="+", default=[2, 8, 64])
    parser.add_argument("--spreads", type=int, nargs="+", default=list(SPREADS), help="longest by shortest")
    parser.add_argument("--ahead", type=int, nargs="+", default=list(AHEAD), help="budget.rounds_ahead")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--per-slot", type=int, default=2, help="trials of a round for each slot")
    parser.add_argument("--seconds", type=float, default=60.0, help="mean length of a trial")
    parser.add_argument("--parallel", type=int, default=2, help="searches at a time; they mostly wait")
    parser.add_argument("--gantt", type=Path, help="SVG of what the slots did")
    parser.add_argument("--real", action="store_true", help="run real searches in real time instead")
    parser.add_argument("--kill", action="store_true", help="kill searches and compare their proposals instead")
    parser.add_argument("--regret", type=int, metavar="SEARCHES", help="regret of so many searches each instead")
    return parser.parse_args(arguments)


def main() -> None:
    """Measure and print."""
    options, console = parse(), Console(stderr=True)
    if options.regret:
        show_regrets(options.regret)
        return
    if not (options.real or options.kill):
        show(options, simulated(options))
        return
    with tempfile.TemporaryDirectory(prefix="slots-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        with closing(PrefectServer(folder / "prefect")) as server:
            if options.kill:
                sys.exit(not kills(options, folder, server, console))
            show(options, real(options, folder, server))


if __name__ == "__main__":
    main()
