"""Large studies: the time for a search to resume, and for commands of `nasflow` to read the study.

`python -m benchmarks.study` fills studies of 1,000 and 10,000 trials of 20 epochs (SQLite) and times, each in a process
of its own and the median of `--repeats`:

- opening the study, which claims it for this controller;
- resuming: opening it, finding the round to run, and giving the recorded rounds to the strategy. Imports, the check of
  the config and Prefect's own start are left out, because they do not depend on the study's size;
- memory while resuming, without that of the imports;
- `nasflow leaderboard STUDY` and `nasflow --help` from the shell, including imports.

The growth is the exponent p of CPU seconds (or MB) ~ trials^p from the smallest study to the largest.
`--trials 1000 10000 100000` takes about three minutes on one core, of which filling is one, and 400 MB of disk.
"""

import argparse
import json
import math
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.commands import ONE_THREAD, ROOT
from benchmarks.study.filling import EPOCHS, fill, study_config
from nasflow.study.study import Study

STRATEGIES = ("random", "grid", "evolution")
TARGETS = {"open": 2.0, **{f"resume, {kind}": 5.0 for kind in STRATEGIES}, "memory (MB)": 150.0,
           "nasflow leaderboard": 1.5, "nasflow --help": 0.5}  # fmt: skip
AT = 10_000  # the number of trials for which the targets are set

Figures = dict[str, float]


def measure(folder: Path, repeats: int) -> tuple[Figures, Figures]:
    """Measure with the study in `folder`. Return wall seconds (and MB) by name, and CPU seconds."""
    wall: dict[str, list[float]] = {name: [] for name in TARGETS}
    cpu: dict[str, list[float]] = {name: [] for name in TARGETS if "memory" not in name}
    leaderboard = ["leaderboard", "large", "--store", study_config(folder).store]
    for _ in range(repeats):
        for kind in STRATEGIES:
            said = _run([sys.executable, "-m", "benchmarks.study.probe", str(folder), kind])
            found = json.loads(said.splitlines()[-1])
            for name, key in (("open", "open"), (f"resume, {kind}", "resume")):
                wall[name].append(found[key])
                cpu[name].append(found[f"{key}_cpu"])
            wall["memory (MB)"].append(found["megabytes"])
        for name, arguments in (("nasflow leaderboard", leaderboard), ("nasflow --help", ["--help"])):
            began, began_cpu = time.perf_counter(), _cpu_of_children()
            _run([str(Path(sys.executable).with_name("nasflow")), *arguments])
            wall[name].append(time.perf_counter() - began)
            cpu[name].append(_cpu_of_children() - began_cpu)
    worst = {"memory (MB)": max(wall["memory (MB)"])}
    medians = {name: statistics.median(values) for name, values in wall.items()} | worst
    return medians, {name: statistics.median(values) for name, values in cpu.items()}


def growth(sizes: Sequence[int], values: Sequence[float]) -> float:
    """Return the exponent p of values ~ sizes^p, from the first to the last."""
    return math.log(values[-1] / values[0]) / math.log(sizes[-1] / sizes[0])


def table(walls: Mapping[int, Figures], cpus: Mapping[int, Figures]) -> Table:
    """Return a table of the figures by size, wall seconds with CPU seconds in brackets, and the targets."""
    sizes = list(walls)
    shown = Table("", *(f"{size:,} trials" for size in sizes), f"target at {AT:,}", "growth", title="a large study")
    for name, target in TARGETS.items():
        cells = [
            f"{walls[size][name]:.0f}" if "memory" in name else f"{walls[size][name]:.2f} s ({cpus[size][name]:.2f})"
            for size in sizes
        ]
        least, most = (cpus[size].get(name, walls[size][name]) for size in (sizes[0], sizes[-1]))
        exponent = f"{growth(sizes, [least, most]):.2f}" if len(sizes) > 1 else ""
        met = "" if AT not in walls else ", met" if walls[AT][name] < target else ", MISSED"
        shown.add_row(name, *cells, f"< {target:g}{met}", exponent)
    return shown


def _run(command: Sequence[str]) -> str:
    env = {**os.environ, **ONE_THREAD, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} failed: {done.stderr[-2000:]}")
    return done.stdout


def _cpu_of_children() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    """Fill the studies, measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, nargs="+", default=[1_000, AT], metavar="N", help="sizes of the studies")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    console = Console(width=150)
    walls: dict[int, Figures] = {}
    cpus: dict[int, Figures] = {}
    for size in sorted(options.trials):
        with tempfile.TemporaryDirectory() as place:
            folder, began = Path(place), time.perf_counter()
            study = Study.open(study_config(folder))
            fill(study, size)
            study.close()
            console.print(
                f"{size:,} trials x {EPOCHS} epochs: filled in {time.perf_counter() - began:.1f} s, "
                f"{(folder / 'nasflow.db').stat().st_size / 1e6:.0f} MB"
            )
            walls[size], cpus[size] = measure(folder, options.repeats)
    console.print(table(walls, cpus))
    versions = f"Python {platform.python_version()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"
    console.print(f"wall seconds (CPU seconds), medians of {options.repeats}; memory: the most; {versions}")
    console.print_json(json.dumps({"wall": walls, "cpu": cpus}), indent=None)


if __name__ == "__main__":
    main()
