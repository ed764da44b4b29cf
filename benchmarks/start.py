"""How soon a search's first epoch ends after its command was entered: `python -m benchmarks.start`.

Every repeat runs the same search, four small MLPs on digits and one slot, in these ways, one after the other:

- `cold`: nothing is in the user's cache, and Prefect has no database. Python's bytecode is there;
- `new home`: Prefect has no database, but nasflow's cache is there, with a template of one;
- `warm`: as in every later search;
- `kept server`: warm, and `nasflow server start` was called before;
- `Optuna + Lightning`: a study in SQLite and a plain Trainer in one process, without any server, for comparison.

The parts of nasflow's time follow from the files of the search: `checks` until the study's database is there (imports,
the config, its data), `Prefect` until the first job was submitted (the rest of the server's start, the flow run, the
round), `worker` until the job says that it has started, `epoch` until it reports its first epoch. The server starts
with the command, beside all of these. CPU seconds are those of all processes until the command ended, and say more than
wall seconds on a machine that has other work. The last lines are the wall seconds of short commands.
"""

import argparse
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console
from rich.table import Table

from benchmarks.commands import ONE_THREAD, ROOT, CpuMeter
from benchmarks.end_to_end import leave
from nasflow.training_service.machine.processes import adopt_orphans

NASFLOW = [sys.executable, "-m", "nasflow.flows.cli"]
NAME = "first"
SEARCH = {
    "name": NAME,
    "space": {"target": "nasflow.space.ready:mlp", "params": {"in_features": 64, "classes": 10}},
    "evaluator": {"kind": "classification", "data": {"target": "nasflow.evaluator.data:DigitsRows"}, "epochs": 3},
    "strategy": {"kind": "random"},
    "budget": {"rounds": 1, "trials_per_round": 4},
    "training_service": {"kind": "local", "slots": 1},
}
PARTS = ("checks", "Prefect", "worker", "epoch")
WAYS = ("cold", "new home", "warm", "kept server", "Optuna + Lightning")
SHORT = (["--help"], ["show", NAME], ["leaderboard", NAME])
_LOOKS_EVERY = 0.005  # seconds


@dataclass(frozen=True)
class Start:
    """One run: seconds until the first epoch ended, of it each part, until the command ended; CPU and load."""

    first: float
    parts: tuple[float, ...]
    whole: float
    cpu: float
    load: float


def run(command: list[str], folder: Path, environment: dict[str, str], marks: list[Callable[[], bool]]) -> Start:
    """Run a command; the last of the marks is the end of the first epoch."""
    load, meter = os.getloadavg()[0], CpuMeter()
    env = {**os.environ, **ONE_THREAD, "PYTHONPATH": str(ROOT), **environment}
    log = folder / "command.log"
    seen: list[float] = []
    began = time.perf_counter()
    with log.open("wb") as output:
        process = subprocess.Popen(command, cwd=folder, env=env, stdout=output, stderr=output)
    try:
        while process.poll() is None:
            while len(seen) < len(marks) and marks[len(seen)]():
                seen.append(time.perf_counter() - began)
            time.sleep(_LOOKS_EVERY)
    finally:
        process.terminate()  # a benchmark that is ended leaves no search
    whole = time.perf_counter() - began
    if process.returncode or len(seen) < len(marks):
        sys.exit(f"{' '.join(command)}: exit code {process.returncode}: {log.read_text()[-2000:]}")
    parts = tuple(after - before for before, after in zip([0.0, *seen], seen, strict=False))
    return Start(seen[-1], parts, whole, meter.read()[0], load)


def run_search(folder: Path, environment: dict[str, str]) -> Start:
    """Run the search in a new folder."""
    (folder / "search.yaml").write_text(yaml.safe_dump(SEARCH))
    jobs = folder / "nasflow-runs" / NAME / "jobs"

    def reported(kind: str) -> bool:
        return any(f'"{kind}"' in file.read_text() for file in jobs.glob("*/events.jsonl"))

    marks = [
        (folder / "nasflow.db").exists,
        lambda: any(jobs.glob("*/job.json")),
        lambda: reported("started"),
        lambda: reported("epoch"),
    ]
    return run([*NASFLOW, "run", "search.yaml"], folder, environment, marks)


def run_optuna(folder: Path) -> Start:
    """Run Optuna's study in a new folder."""
    mark = folder / "first-epoch"
    return run([sys.executable, "-m", "benchmarks.start_optuna", str(mark)], folder, {}, [mark.exists])


def places(way: str, used: Path, folder: Path) -> dict[str, str]:
    """Return the environment of a way: Prefect's home and the cache, used ones or new ones."""
    home = folder if way in ("cold", "new home") else used
    cache = folder if way == "cold" else used
    return {"PREFECT_HOME": str(home / "prefect"), "XDG_CACHE_HOME": str(cache / "cache")}


def measure(way: str, used: Path, folder: Path) -> Start:
    """Run a way once in a new folder."""
    folder.mkdir()
    if way == "Optuna + Lightning":
        return run_optuna(folder)
    environment = places(way, used, folder)
    if way != "kept server":
        return run_search(folder, environment)
    env = {**os.environ, **environment}
    subprocess.run([*NASFLOW, "server", "start"], env=env, check=True, stdout=subprocess.DEVNULL)
    try:
        return run_search(folder, environment)
    finally:
        subprocess.run([*NASFLOW, "server", "stop"], env=env, check=True, stdout=subprocess.DEVNULL)


def short_commands(folder: Path, environment: dict[str, str], repeats: int) -> dict[str, list[float]]:
    """Return the wall seconds of short commands on a search's folder."""
    found: dict[str, list[float]] = {" ".join(command): [] for command in SHORT}
    for _ in range(repeats):
        for command in SHORT:
            began = time.perf_counter()
            env = {**os.environ, **environment}
            subprocess.run([*NASFLOW, *command], cwd=folder, env=env, check=True, stdout=subprocess.DEVNULL)
            found[" ".join(command)].append(time.perf_counter() - began)
    return found


def table(starts: dict[str, list[Start]]) -> Table:
    """Return the medians as a table."""
    headings = ["", "first epoch", *PARTS, "whole command", "CPU", "times Optuna's"]
    made = Table(*headings, title="seconds after the command was entered (medians)")
    reference = starts.get("Optuna + Lightning")
    for way, runs in starts.items():
        first = statistics.median(run.first for run in runs)
        of_parts = [statistics.median(parts) for parts in zip(*(run.parts for run in runs), strict=True)]
        shown = [f"{value:.2f}" for value in of_parts] if len(of_parts) == len(PARTS) else [""] * len(PARTS)
        whole, cpu = (statistics.median(values) for values in zip(*((run.whole, run.cpu) for run in runs), strict=True))
        ratio = f"{first / statistics.median(run.first for run in reference):.2f}" if reference else ""
        made.add_row(way, f"{first:.2f}", *shown, f"{whole:.2f}", f"{cpu:.2f}", ratio)
    return made


def main() -> None:
    """Measure, print a table and one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    options = parser.parse_args()
    adopt_orphans()
    signal.signal(signal.SIGTERM, leave)
    os.environ.pop("PREFECT_API_URL", None)
    console, starts = Console(width=None if sys.stdout.isatty() else 160), {way: [] for way in options.ways}
    with tempfile.TemporaryDirectory(prefix="nasflow-start-", ignore_cleanup_errors=True) as name:
        used = Path(name) / "used"
        measure("warm", used, used)  # so that all later ones are warm
        for repeat in range(options.repeats):
            for index, way in enumerate(options.ways):
                starts[way].append(measure(way, used, Path(name) / f"{repeat}-{index}"))
        short = short_commands(used, places("warm", used, used), options.repeats)
    console.print(table(starts))
    for command, walls in short.items():
        console.print(f"nasflow {command}: {statistics.median(walls):.2f} s")
    results: dict[str, Any] = {way: [asdict(start) for start in runs] for way, runs in starts.items()}
    machine = {"cores": len(os.sched_getaffinity(0)), "load_average": os.getloadavg(), "platform": platform.platform()}
    print(json.dumps({"repeats": options.repeats, "machine": machine, "results": results, "short": short}))


if __name__ == "__main__":
    main()
