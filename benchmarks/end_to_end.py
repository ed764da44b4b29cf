"""One search from command to result: `nasflow run`, NNI 3.0's local service, and Optuna with plain Lightning.

`python -m benchmarks.end_to_end` trains the same MLPs on digits, two at a time, with the same epochs, batches, split,
optimizer and learning rates, in every repeat:

- `nasflow run`: the command, against a Prefect server that already runs; checkpoints, record and artifacts included;
- `Optuna + Lightning`: two worker processes of one study in SQLite, a plain Trainer and DataLoader a trial;
- `NNI 3.0 local`: an experiment on its local service with two concurrent trials, a process of plain PyTorch a trial,
  in an environment that is installed below --work-dir once.

In its first repeat nasflow measures kernels that are new to it, as in the first search on a machine; later repeats
find the costs on disk. All wall times are in the JSON, so it shows both.

Every process computes with one thread. The contestants are interleaved; the Prefect server is paused while it is not
needed. Seconds per trial are given for the whole command, and without the contestant's own start and end (from the
start of its first trial to the end of its last). If the numbers of trials differ, quote the ratio of the latter to
nasflow's whole command, because the cost of a start is shared by all trials.
"""

import argparse
import json
import math
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

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.commands import ContestantError, CpuMeter, PrefectServer
from benchmarks.searches import Contestant, NasflowRun, NniRun, OptunaRun, Outcome, Workload
from nasflow.training_service.machine.processes import adopt_orphans


@dataclass
class Record:
    """The results of a contestant."""

    contestant: Contestant
    outcomes: list[Outcome] = field(default_factory=list)
    loads: list[float] = field(default_factory=list)  # load average of one minute when a run began
    cpu: list[float] = field(default_factory=list)  # CPU seconds of a run, nasflow's with the Prefect server's
    others_cpu: list[float] = field(default_factory=list)  # those of other processes meanwhile
    error: str | None = None

    @property
    def trials(self) -> int:
        """Trials per run."""
        return len(self.contestant.architectures)

    def accuracies(self) -> list[float]:
        """Accuracies by architecture, averaged over the repeats."""
        return [statistics.mean(values) for values in zip(*(o.accuracies for o in self.outcomes), strict=True)]


def measure(record: Record, server: PrefectServer, folder: Path, seed: int) -> None:
    """Run a contestant once and record the results; a contestant that failed is not run again."""
    if record.error is not None:
        return
    folder.mkdir()
    load = os.getloadavg()[0]
    needs_server = isinstance(record.contestant, NasflowRun)
    try:
        with nullcontext() if needs_server else server.paused():
            meter = CpuMeter([server.process] if needs_server else [])
            outcome = record.contestant.run(folder, seed)
            cpu, others_cpu = meter.read()
    except ContestantError as error:
        record.error = str(error)
        return
    record.outcomes.append(outcome)
    record.loads.append(load)
    record.cpu.append(cpu)
    record.others_cpu.append(others_cpu)


def race(workload: Workload, options: argparse.Namespace, console: Console) -> tuple[list[Record], float]:
    """Run all contestants. Return their records, nasflow's first, and the start-up seconds of the Prefect server."""
    options.work_dir.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="run-", dir=options.work_dir, ignore_cleanup_errors=True) as name:
        folder = Path(name)
        server = PrefectServer(folder / "prefect")
        try:
            records = [Record(contestant) for contestant in contestants(workload, options, server)]
            for record in records:
                console.log(f"preparing {record.contestant.name}")
                try:
                    record.contestant.prepare()
                except ContestantError as error:
                    record.error = f"could not be installed: {error}"
            if options.warm_up:
                warm_up(records, options, server, folder)
            for repeat in range(options.repeats):
                for index, record in enumerate(records):
                    console.log(f"repeat {repeat + 1} of {options.repeats}: {record.contestant.name}")
                    measure(record, server, folder / f"{repeat}-{index}", seed=1000 * repeat)
            return records, server.cold_start
        finally:
            server.close()


def contestants(workload: Workload, options: argparse.Namespace, server: PrefectServer) -> list[Contestant]:
    """Return the contestants that are not skipped."""
    made: list[Contestant] = [NasflowRun(workload, server)]
    if "optuna" not in options.skip:
        made.append(OptunaRun(workload, min(options.optuna_trials or workload.trials, workload.trials)))
    if "nni" not in options.skip:
        made.append(NniRun(workload, min(options.nni_trials, workload.trials), options.work_dir))
    return made


def warm_up(records: list[Record], options: argparse.Namespace, server: PrefectServer, folder: Path) -> None:
    """Run two trials of one epoch with each, not measured, so that files are cached and bytecode is written."""
    little = Workload(trials=2, epochs=1, rounds=1, seed=1)
    for record, contestant in zip(records, contestants(little, options, server), strict=True):
        trial_run = Record(contestant, error=record.error)
        measure(trial_run, server, folder / f"warm-up-{len(list(folder.iterdir()))}", seed=0)
        record.error = trial_run.error


def difference(of: Record, to: Record) -> tuple[float, float]:
    """Return the mean difference of accuracy on the architectures that both trained, and its standard error."""
    pairs = zip(of.accuracies(), to.accuracies(), strict=False)
    differences = [one - other for one, other in pairs]
    error = statistics.stdev(differences) / math.sqrt(len(differences)) if len(differences) > 1 else math.inf
    return statistics.mean(differences), error


def figures(record: Record, nasflow: Record) -> dict[str, Any]:
    """Return a contestant's figures as JSON; all ratios are medians over the repeats."""
    if record.error is not None:
        return {"trials": record.trials, "error": record.error}
    walls = [outcome.wall for outcome in record.outcomes]
    spans = [outcome.span for outcome in record.outcomes]
    found: dict[str, Any] = {
        "trials": record.trials,
        "wall_seconds": walls,
        "span_seconds": spans,
        "wall_per_trial": statistics.median(walls) / record.trials,
        "span_per_trial": statistics.median(spans) / record.trials,
        "cpu_per_trial": statistics.median(record.cpu) / record.trials,
        "accuracy": statistics.mean(record.accuracies()),
        "load_before": record.loads,
        "cpu_seconds": record.cpu,
        "others_cpu_seconds": record.others_cpu,
    }
    if record is not nasflow and nasflow.error is None:
        base = [outcome.wall / nasflow.trials for outcome in nasflow.outcomes]
        mean, error = difference(record, nasflow)
        found |= {
            "ratio": statistics.median(w / record.trials / b for w, b in zip(walls, base, strict=True)),
            "ratio_without_start": statistics.median(s / record.trials / b for s, b in zip(spans, base, strict=True)),
            "accuracy_difference": mean,
            "accuracy_difference_standard_error": error,
            "equal_within_noise": abs(mean) <= 3 * error,
        }
    return found


def table(names: Sequence[str], results: Sequence[dict[str, Any]]) -> Table:
    """Return the figures as a table to print."""
    made = Table(
        *("contestant", "trials", "wall (median)", "a trial", "a trial, no start", "over nasflow", "over, no start"),
        *("CPU a trial", "others' CPU", "accuracy", "difference"),
    )
    for name, found in zip(names, results, strict=True):
        if "error" in found:
            made.add_row(name, str(found["trials"]), "failed: see below")
            continue
        over = [f"{found[key]:.1f}x" if key in found else "" for key in ("ratio", "ratio_without_start")]
        differs = ""
        if "accuracy_difference" in found:
            differs = f"{found['accuracy_difference']:+.4f} ± {found['accuracy_difference_standard_error']:.4f}"
        made.add_row(
            name,
            str(found["trials"]),
            f"{statistics.median(found['wall_seconds']):.1f} s",
            f"{found['wall_per_trial']:.3f} s",
            f"{found['span_per_trial']:.3f} s",
            *over,
            f"{found['cpu_per_trial']:.3f} s",
            f"{statistics.median(found['others_cpu_seconds']):.1f} s",
            f"{found['accuracy']:.4f}",
            differs,
        )
    return made


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=128, help="of nasflow")
    parser.add_argument("--nni-trials", type=int, default=24, help="the first so many of the same architectures")
    parser.add_argument("--optuna-trials", type=int, help="likewise; default: all")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=1, help="of nasflow; random search gains nothing by more")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0, help="of the search, so of the architectures")
    parser.add_argument("--skip", nargs="+", choices=["nni", "optuna"], default=[])
    parser.add_argument("--warm-up", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument(
        "--work-dir", type=Path, default=Path("~/.cache/nasflow-benchmarks"), help="keeps NNI's environment"
    )
    options = parser.parse_args(arguments)
    options.work_dir = options.work_dir.expanduser().absolute()
    return options


def leave(*_: object) -> None:
    """End what was started and exit, on SIGTERM as on Ctrl-C; `timeout` sends the signal twice."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(143)


def main() -> None:
    """Measure, print a table and one line of JSON; exit code 1 if a contestant failed."""
    options = parse()
    adopt_orphans()
    signal.signal(signal.SIGTERM, leave)
    console = Console(stderr=True)
    workload = Workload(options.trials, options.epochs, options.rounds, options.seed)
    load = os.getloadavg()
    records, cold_start = race(workload, options, console)
    results = [figures(record, records[0]) for record in records]
    names = [record.contestant.name for record in records]
    machine = {"cores": len(os.sched_getaffinity(0)), "load_average": load, "platform": platform.platform()}
    versions = {"python": platform.python_version(), "torch": torch.__version__}
    output = Console(width=None if sys.stdout.isatty() else 160)
    output.print(table(names, results))
    if records[0].outcomes:
        first = records[0].outcomes[0].wall
        output.print(f"nasflow's first run, which had no costs of kernels on disk, took {first:.1f} s.")
    output.print(f"The Prefect server's cold start, with a new database, took {cold_start:.1f} s beside these.")
    for name, found in zip(names, results, strict=True):
        if "error" in found:
            output.print(f"{name} failed: {found['error']}", style="red", markup=False)
    print(
        json.dumps(
            {
                "arguments": {name: str(v) if isinstance(v, Path) else v for name, v in vars(options).items()},
                "machine": machine | versions,
                "prefect_cold_start_seconds": cold_start,
                "results": dict(zip(names, results, strict=True)),
            }
        )
    )
    sys.exit(any(record.error is not None for record in records))


if __name__ == "__main__":
    main()
