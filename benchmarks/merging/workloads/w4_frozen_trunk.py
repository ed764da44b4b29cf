"""W4: transfer. A frozen random network that all trials share, searched adapters, and a head per trial.

The images are digits upscaled to 32x32, in batches of 32. A merged job computes the trunk's output once, sequential
trials once each. So the floor is the time of (b) less all passes through the trunk but one; for F seconds of trunk and
h of head it is (F + h) / (F / N + h) below (b). It runs the heads one after the other, so fusing them can beat it.
Peak memory is that of a separate process.
"""

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from benchmarks.merging.contest import (
    PROCESS,
    SEQUENTIAL,
    TUNED,
    accuracy_differences,
    add_contest_arguments,
    enter,
    gauge,
    machine_load,
    sampled,
    sharing_facts,
    sharing_floors,
)
from benchmarks.merging.contestants import Contestant, Outcome
from benchmarks.merging.floor import count_work
from benchmarks.merging.group import ROOT, Group, classification, draw
from benchmarks.merging.report import Report
from benchmarks.merging.timing import Laps, interleave
from benchmarks.merging.workloads.spaces import FrozenTrunk
from nasflow.config.search import DataConfig, Target

TRUNK = "one pass through the trunk, alone"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command line."""
    add_contest_arguments(parser, members=12, epochs=1, sequential=8)


def make_group(members: int, epochs: int, seed: int) -> Group:
    """Return adapters on the frozen trunk."""
    space = Target(target="benchmarks.merging.workloads.spaces:adapted_trunk")
    data = DataConfig(target="benchmarks.merging.workloads.data:large_digits")
    return draw(space, classification(data, epochs), members, seed)


class _TrunkAlone(Contestant):
    """Runs only one trial's passes through the trunk."""

    @torch.inference_mode()
    def run(self) -> Outcome:
        """See `Contestant.run`."""
        data = self.group.load()
        trunk = FrozenTrunk()
        for _ in range(self.group.epochs):
            for loader in (data.train, data.validation):
                for x, _ in loader or ():
                    trunk(x)
        return Outcome()


def run(arguments: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    """Measure and show the results."""
    group = make_group(arguments.members, arguments.epochs, arguments.seed)
    work = count_work(group)
    entrants = [_TrunkAlone(TRUNK, group), *enter(group, work, arguments, folder)]
    laps = interleave(entrants, arguments.repeats, gauge)
    members = len(group)
    facts = {
        "sampled": sampled(arguments, members),
        "trunk": _shares(laps, work.model_steps, members),
        **sharing_facts(laps, TRUNK, members),
        **peak_memory(group, laps, folder),
        **accuracy_differences(laps),
        "load": machine_load(laps),
    }
    floor = statistics.median(sharing_floors(laps, TRUNK, members, "wall"))
    baselines = [name for name in (PROCESS, SEQUENTIAL, TUNED) if name in laps.timed]
    title = f"W4: {members} members on a frozen trunk, {group.epochs} epochs of digits"
    report = Report(title, laps, work.model_steps, floor, baselines, facts)
    report.show()
    return [report.as_json()]


def _shares(laps: Laps, model_steps: int, members: int) -> str:
    steps = model_steps / members
    trunk = laps.seconds(TRUNK, "cpu") / steps
    rest = laps.seconds(SEQUENTIAL, "cpu") / model_steps - trunk
    return f"F {1e3 * trunk:.2f} ms, h {1e3 * rest:.2f} ms a model-step, validation included; h = {rest / trunk:.2f} F"


def peak_memory(group: Group, laps: Laps, folder: Path) -> dict[str, str]:
    """Return the peak memory of the whole group in one job, and of as many processes and trunks."""
    mib = 2.0**20
    trunk = sum(tensor.numel() * tensor.element_size() for tensor in FrozenTrunk().state_dict().values())
    merged = job_memory(group, folder)
    facts = {
        "memory of one job": f"{merged['peak'] / mib:.0f} MiB at its peak, {merged['before'] / mib:.0f} MiB before",
        "memory of so many trunks": f"{len(group)} x {trunk / mib:.1f} = {len(group) * trunk / mib:.0f} MiB",
    }
    if PROCESS in laps.timed:
        alone = laps.figure(PROCESS, "peak_bytes") / mib
        facts["memory of so many processes"] = f"{len(group)} x {alone:.0f} = {len(group) * alone:.0f} MiB"
    return facts


def job_memory(group: Group, folder: Path) -> dict[str, int]:
    """Return the peak bytes of a process that runs the group as one job, and its bytes after imports only."""
    spec, root = folder / "memory.json", folder / "memory"
    spec.write_text(group.job("memory").model_dump_json())
    command = [sys.executable, "-m", "benchmarks.merging.memory", str(spec), str(root)]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    return found
