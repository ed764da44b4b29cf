"""The cost of orchestration: searches with empty trials, through nasflow, Optuna, Ray Tune and NNI 3.0.

`python -m benchmarks.orchestration` runs searches of 100, 1,000 and 5,000 trials in turns:

- `nasflow run`: the command, against a Prefect server that already runs. Rounds of `--round` trials, jobs of `--batch`
  on two slots, nasflow's defaults otherwise;
- `nasflow, no Prefect`: the same rounds, jobs and records without flows and tasks, to show the cost of Prefect;
- `Optuna`: the bare loop of one process, on SQLite and in memory;
- `Ray Tune` with two CPUs, as it is and with `reuse_actors`, in an environment that is installed below --work-dir
  once;
- `NNI 3.0 local`: two concurrent trials, also in its own environment.

The remaining work of each contestant's trial is printed below the table; only nasflow's trials build and train a model.

Wall seconds are from the command to its end. `a trial more` is the slope from the smaller count to this one, so it
excludes a contestant's start and end. CPU seconds are those of all processes, the Prefect server's until it has
recorded everything; it is started before, and paused while it is not needed. Every process computes with one thread.
"""

import argparse
import json
import os
import platform
import signal
import statistics
import sys
import tempfile
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.commands import ContestantError, CpuMeter, PrefectServer, cpu_seconds
from benchmarks.end_to_end import leave
from benchmarks.orchestration.contestants import (
    Contestant,
    NasflowPlain,
    NasflowRun,
    NniLocal,
    OptunaBare,
    Outcome,
    RayTune,
)
from nasflow.training_service.machine.processes import adopt_orphans

CONTESTANTS = ("nasflow", "plain", "optuna-sqlite", "optuna-memory", "ray", "ray-reuse", "nni")


@dataclass
class Record:
    """The results of a contestant for one number of trials."""

    contestant: Contestant
    trials: int
    outcomes: list[Outcome] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)  # CPU seconds of a run, with the Prefect server's if it is needed
    server_cpu: list[float] = field(default_factory=list)  # of these, the server's
    loads: list[float] = field(default_factory=list)  # load average of one minute when a run began

    @property
    def wall(self) -> float:
        """The median of the wall seconds."""
        return statistics.median(outcome.wall for outcome in self.outcomes)

    def figures(self) -> dict[str, Any]:
        """Return the figures as JSON; figures per trial are medians."""
        rounds = [outcome.rounds for outcome in self.outcomes if outcome.rounds]
        return {
            "trials": self.trials,
            "wall_seconds": [outcome.wall for outcome in self.outcomes],
            "wall_per_trial": self.wall / self.trials,
            "cpu_per_trial": statistics.median(self.cpu) / self.trials,
            "server_cpu_per_trial": statistics.median(self.server_cpu) / self.trials,
            "server_recorded_after_seconds": [outcome.recorded for outcome in self.outcomes],
            "per_trial_by_round": [statistics.median(values) for values in zip(*rounds, strict=True)],
            "load_before": self.loads,
        }


def measure(record: Record, server: PrefectServer, folder: Path) -> None:
    """Run a contestant once and record the results. Raises ContestantError."""
    folder.mkdir()
    needs_server = record.contestant.needs_server
    load = os.getloadavg()[0]
    with nullcontext() if needs_server else server.paused():
        before, meter = cpu_seconds(server.process), CpuMeter([server.process] if needs_server else [])
        outcome = record.contestant.run(folder, record.trials)
        cpu, _ = meter.read()
        server_cpu = cpu_seconds(server.process) - before
    record.outcomes.append(outcome)
    record.cpu.append(cpu)
    record.server_cpu.append(server_cpu)
    record.loads.append(load)


def race(options: argparse.Namespace, console: Console) -> tuple[dict[str, list[Record]], dict[str, str]]:
    """Run all contestants. Return the records of each, one per number of trials, and the errors of failed ones."""
    options.work_dir.mkdir(parents=True, exist_ok=True)
    records: dict[str, list[Record]] = {}
    errors: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="run-", dir=options.work_dir, ignore_cleanup_errors=True) as name:
        folder = Path(name)
        server = PrefectServer(folder / "prefect")
        try:
            for contestant, counts in contestants(options, server):
                console.log(f"preparing {contestant.name}")
                records[contestant.name] = [Record(contestant, count) for count in sorted(counts)]
                try:
                    contestant.prepare()
                    measure(Record(contestant, 2), server, folder / f"warm-up-{len(records)}")
                except ContestantError as error:
                    errors[contestant.name] = str(error)
            turns = [record for turn in by_turns(list(records.values())) for record in turn]
            for repeat in range(options.repeats):
                for index, record in enumerate(turns):
                    if (name := record.contestant.name) in errors:
                        continue
                    console.log(f"repeat {repeat + 1} of {options.repeats}: {name}, {record.trials} trials")
                    try:
                        measure(record, server, folder / f"{repeat}-{index}")
                    except ContestantError as error:
                        errors[name] = str(error)
        finally:
            server.close()
    return records, errors


def by_turns(lists: Sequence[Sequence[Record]]) -> list[list[Record]]:
    """Return the first of each list, then the second of each that has one, and so on."""
    longest = max(map(len, lists))
    return [[some[place] for some in lists if place < len(some)] for place in range(longest)]


def contestants(options: argparse.Namespace, server: PrefectServer) -> list[tuple[Contestant, list[int]]]:
    """Return the requested contestants, and their numbers of trials."""
    sizes = (options.round, options.batch)
    made: dict[str, tuple[Contestant, list[int]]] = {
        "nasflow": (NasflowRun(server, *sizes), options.trials),
        "plain": (NasflowPlain(server, *sizes), options.trials),
        "optuna-sqlite": (OptunaBare(stored=True), options.trials),
        "optuna-memory": (OptunaBare(stored=False), options.trials),
        "ray": (RayTune(options.work_dir, reuse=False), options.ray_trials),
        "ray-reuse": (RayTune(options.work_dir, reuse=True), options.ray_trials),
        "nni": (NniLocal(options.work_dir), options.nni_trials),
    }
    return [made[name] for name in options.contestants]


def slope(smaller: Record, larger: Record) -> float:
    """Return the seconds per additional trial between two numbers of trials."""
    return (larger.wall - smaller.wall) / (larger.trials - smaller.trials)


def table(records: dict[str, list[Record]], errors: dict[str, str]) -> Table:
    """Return the figures as a table to print."""
    made = Table(
        *("contestant", "trials", "wall (median)", "ms a trial, all in", "ms a trial more", "CPU ms a trial"),
        *("of it Prefect's server", "server done after"),
        title="trials that do nothing",
    )
    for name, by_count in records.items():
        if name in errors:
            made.add_row(name, "failed: see below")
            continue
        for smaller, record in zip([None, *by_count], by_count, strict=False):
            found = record.figures()
            needs_server = record.contestant.needs_server
            made.add_row(
                name,
                f"{record.trials:,}",
                f"{record.wall:.1f} s",
                f"{1e3 * found['wall_per_trial']:.1f}",
                f"{1e3 * slope(smaller, record):.1f}" if smaller else "",
                f"{1e3 * found['cpu_per_trial']:.1f}",
                f"{1e3 * found['server_cpu_per_trial']:.1f}" if needs_server else "",
                f"{statistics.median(found['server_recorded_after_seconds']):.1f} s" if needs_server else "",
            )
    return made


def flatness(record: Record) -> str:
    """Return a text with a trial's time at the beginning and at the end of nasflow's largest search."""
    rounds = record.figures()["per_trial_by_round"]
    some = max(1, len(rounds) // 4)
    first, last = (1e3 * statistics.median(part) for part in (rounds[:some], rounds[-some:]))
    return (
        f"{record.contestant.name}, {record.trials:,} trials: {first:.1f} ms a trial in the first {some} of "
        f"{len(rounds)} rounds, {last:.1f} ms in the last {some}"
    )


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, nargs="+", default=[100, 1000, 5000], metavar="N", help="counts")
    parser.add_argument("--ray-trials", type=int, nargs="+", default=[100, 1000], metavar="N", help="of Ray Tune")
    parser.add_argument("--nni-trials", type=int, nargs="+", default=[4, 24], metavar="N", help="of NNI")
    parser.add_argument("--round", type=int, default=512, help="trials of nasflow's rounds")
    parser.add_argument("--batch", type=int, default=16, help="trials of nasflow's jobs")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--contestants", nargs="+", choices=CONTESTANTS, default=list(CONTESTANTS))
    parser.add_argument(
        "--work-dir", type=Path, default=Path("~/.cache/nasflow-benchmarks"), help="keeps environments of others"
    )
    options = parser.parse_args(arguments)
    options.work_dir = options.work_dir.expanduser().absolute()
    return options


def main() -> None:
    """Measure, print a table and one line of JSON; exit code 1 if a contestant failed."""
    options = parse()
    adopt_orphans()
    signal.signal(signal.SIGTERM, leave)
    load = os.getloadavg()
    records, errors = race(options, Console(stderr=True))
    output = Console(width=None if sys.stdout.isatty() else 160)
    output.print(table(records, errors))
    whole = {name: by_count for name, by_count in records.items() if name not in errors}
    for by_count in whole.values():
        if by_count[-1].outcomes[0].rounds:
            output.print(flatness(by_count[-1]))
    for name, by_count in whole.items():
        output.print(f"{name}: a trial {by_count[0].contestant.does}", soft_wrap=True)
    for name, error in errors.items():
        output.print(f"{name} failed: {error}", style="red", markup=False)
    results = {name: [record.figures() for record in by_count] for name, by_count in whole.items()}
    machine = {"cores": len(os.sched_getaffinity(0)), "load_average": load, "platform": platform.platform()}
    arguments = {name: str(value) if isinstance(value, Path) else value for name, value in vars(options).items()}
    print(json.dumps({"arguments": arguments, "machine": machine, "results": results, "errors": errors}))
    sys.exit(bool(errors))


if __name__ == "__main__":
    main()
