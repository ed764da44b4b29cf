"""The output of a benchmark: a table for people, one line of JSON for programs."""

import json
import os
import platform
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.merging.pinning import PINNED
from benchmarks.merging.timing import Laps
from nasflow.system.processor import cpu_name

_CONSOLE = Console(width=150)


@dataclass
class Report:
    """The figures of one workload.

    Attributes:
        floor_seconds: the floor of the whole group; 0 if unknown.
        baselines: the names of the contestants to which ratios are given.
        facts: other results, for the JSON and for the lines below the table.
    """

    title: str
    laps: Laps
    model_steps: int
    floor_seconds: float = 0.0
    baselines: Sequence[str] = ()
    facts: dict[str, Any] = field(default_factory=dict)

    def rows(self) -> dict[str, dict[str, float]]:
        """Return the figures of each contestant."""
        return {name: self._row(name) for name in self.laps.timed}

    def _row(self, name: str) -> dict[str, float]:
        laps = self.laps
        seconds = laps.seconds(name)
        row = {
            "seconds": seconds,
            "least_seconds": laps.least(name),
            "cpu_seconds": laps.seconds(name, "cpu"),
            "warm_up_seconds": laps.warm_up[name].wall,
            "model_steps_per_second": self.model_steps / seconds,
            "microseconds_a_model_step": 1e6 * seconds / self.model_steps,
            "share_of_floor": self.floor_seconds / seconds,
            "accuracy": statistics.fmean(lap.outcome.accuracy for lap in laps.timed[name]),
        }
        for baseline in self.baselines:
            row[f"over {baseline}"] = laps.speed_up(name, baseline)
            row[f"over {baseline}, CPU"] = laps.speed_up(name, baseline, "cpu")
        keys = laps.timed[name][0].outcome.figures
        return row | {key: laps.figure(name, key) for key in keys}

    def show(self) -> None:
        """Print the table, and the facts below it."""
        short = [baseline.partition(" ")[0] for baseline in self.baselines]
        table = Table("contestant", title=self.title)
        ratios_heads = [f"over {name}" for name in short]
        for head in ["wall s", "least", "CPU s", "us a step", *ratios_heads, "CPU", "of floor", "accuracy"]:
            table.add_column(head, justify="right")
        for name, row in self.rows().items():
            ratios = [f"{row[f'over {baseline}']:.2f}x" for baseline in self.baselines]
            over_cpu = " ".join(f"{row[f'over {baseline}, CPU']:.2f}" for baseline in self.baselines)
            seconds = (f"{row[key]:.3f}" for key in ("seconds", "least_seconds", "cpu_seconds"))
            share = f"{100 * row['share_of_floor']:.1f} %" if self.floor_seconds else "-"
            step = f"{row['microseconds_a_model_step']:.0f}"
            table.add_row(name, *seconds, step, *ratios, over_cpu, share, f"{row['accuracy']:.4f}")
        print_table(table)
        show_facts(self.facts)

    def as_json(self) -> dict[str, Any]:
        """Return all figures, including every single run."""
        runs = {
            name: {"wall": [lap.wall for lap in laps], "cpu": [lap.cpu for lap in laps]}
            for name, laps in self.laps.timed.items()
        }
        return {
            "title": self.title,
            "model_steps": self.model_steps,
            "floor_seconds": self.floor_seconds,
            "contestants": self.rows(),
            "runs": runs,
            "machine_readings": self.laps.machine,
            **self.facts,
        }


def print_table(table: Table) -> None:
    """Print a table."""
    _CONSOLE.print(table)


def show_facts(facts: dict[str, Any]) -> None:
    """Print one line per fact."""
    for name, value in facts.items():
        text = f"{value:.4g}" if isinstance(value, float) else value
        _CONSOLE.print(f"  {name.replace('_', ' ')}: {text}", highlight=False, markup=False)


def machine() -> dict[str, Any]:
    """Return a description of the machine and its software."""
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {
        "processor": cpu_name(),
        "cores": os.cpu_count(),
        "pinned_to_core": os.environ.get(PINNED),
        "threads": torch.get_num_threads(),
        "gpu": gpu,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def emit(workload: str, arguments: dict[str, Any], results: list[dict[str, Any]], path: Path | None) -> None:
    """Print the line of JSON, and write it to `path` too if given."""
    found = {"workload": workload, "arguments": arguments, "machine": machine(), "results": results}
    line = json.dumps(found, default=str)
    print(line)
    if path is not None:
        path.write_text(line + "\n")
