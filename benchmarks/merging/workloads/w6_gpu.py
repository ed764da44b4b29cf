"""W6: on a GPU. `--model cells`: cells as in NAS-Bench-201 on generated images, bfloat16; `--model mlp`: W1a's MLPs.

The batches are on the GPU. Besides (a) to (d), of which (a) runs `--at-once` processes in parallel on the GPU
(through MPS if its daemon runs), a sequential loop replays each member's whole step from a CUDA graph. The floor is
the longer of two times: the group's arithmetic at the speed of a large product, or its memory traffic at the speed of
a copy. nasflow is there twice: as it is, and with `merge.cuda_graphs`. Without a GPU, `--device cpu` only shows that
everything runs.
"""

import argparse
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.merging.contest import (
    NASFLOW,
    PROCESS,
    SEQUENTIAL,
    STEPS,
    TUNED,
    accuracy_differences,
    add_contest_arguments,
    machine_load,
    sampled,
    step_speed_ups,
)
from benchmarks.merging.contestants import Contestant, Nasflow, Processes, Sequential
from benchmarks.merging.floor import Work, copy_speed, count_work, product_speed
from benchmarks.merging.graphed import GraphedSequential
from benchmarks.merging.group import NEVER, Group, classification, draw
from benchmarks.merging.plain import Manner
from benchmarks.merging.report import Report
from benchmarks.merging.timing import interleave
from benchmarks.merging.workloads import w1_mlps
from nasflow.config.search import DataConfig, MergeConfig, Target
from nasflow.errors import UserError

GRAPHED = "(g) sequential, CUDA graphs"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command line."""
    add_contest_arguments(parser, members=16, epochs=1, sequential=16)
    parser.add_argument("--model", choices=["cells", "mlp"], default="cells")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--images", type=int, default=8192)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--max-cells", type=int, default=5, help="of each of the three stages")
    parser.add_argument("--at-once", type=int, default=4, help="processes of (a) side by side")


def make_group(arguments: argparse.Namespace) -> Group:
    """Return the group that is trained, on the device."""
    device = arguments.device
    if arguments.model == "mlp":
        rows = {"target": "benchmarks.merging.workloads.data:resident_rows", "params": {"device": device}}
        return w1_mlps.make_group("a", arguments.members, arguments.epochs, arguments.seed, **rows)
    cells = {"channels": 16, "max_cells": arguments.max_cells}
    space = Target(target="benchmarks.merging.workloads.gpu_cells:nasbench_cells", params=cells)
    params = {"count": arguments.images, "batch_size": arguments.batch_size, "device": device}
    data = DataConfig(target="benchmarks.merging.workloads.data:resident_images", params=params)
    precision = "bf16-mixed" if device == "cuda" else "32-true"
    return draw(space, classification(data, arguments.epochs, precision), arguments.members, arguments.seed)


def run(arguments: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    """Measure and show the results."""
    if arguments.device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    elif not torch.cuda.is_available():
        raise UserError("W6 needs a CUDA GPU and torch sees none here; --device cpu runs the same code without one")
    group = make_group(arguments)
    work = count_work(group, arguments.device)
    laps = interleave(_enter(group, work, arguments, folder), arguments.repeats)
    floor, why = _floor(group, work, arguments.device)
    baselines = [name for name in (PROCESS, SEQUENTIAL, TUNED, GRAPHED) if name in laps.timed]
    facts: dict[str, Any] = {"sampled": sampled(arguments, len(group)), "floor": why}
    if SEQUENTIAL in laps.timed:
        facts |= accuracy_differences(laps) | step_speed_ups(laps, baselines)
    if PROCESS in laps.timed:
        alone = laps.figure(PROCESS, "training_seconds") / arguments.at_once
        trained = min(len(group), arguments.process_sample)
        facts["(a) without the start of its processes, s"] = alone * len(group) / trained
    facts["load"] = machine_load(laps)
    title = f"W6: {len(group)} members ({arguments.model}) on {arguments.device}"
    report = Report(title, laps, work.model_steps, floor, baselines, facts)
    report.show()
    return [report.as_json()]


def _enter(group: Group, work: Work, arguments: argparse.Namespace, folder: Path) -> list[Contestant]:
    bf16 = group.evaluator.precision == "bf16-mixed"
    plain, tuned = (Manner(tuned=tuned, device=arguments.device, bf16=bf16) for tuned in (False, True))
    few = group.sample(arguments.process_sample, work.flops)
    some = group.sample(arguments.sequential_sample or len(group), work.flops)
    chosen: list[Contestant] = []
    if "process" in arguments.contestants:
        chosen.append(Processes(PROCESS, few, folder, members=len(group), manner=tuned, at_once=arguments.at_once))
    if "sequential" in arguments.contestants:
        chosen.append(Sequential(SEQUENTIAL, some, len(group), plain))
    if "tuned" in arguments.contestants:
        chosen.append(Sequential(TUNED, some, len(group), tuned))
        if arguments.device == "cuda":
            chosen.append(GraphedSequential(GRAPHED, some, len(group), tuned))
    if "nasflow" in arguments.contestants:
        chosen.append(Nasflow(NASFLOW, group, folder))
    if "steps" in arguments.contestants:
        chosen.append(Nasflow(STEPS, group, folder, NEVER))
        if arguments.device == "cuda":
            graphed = replace(group, merge=MergeConfig(cuda_graphs=True))
            chosen.append(Nasflow(f"{STEPS}, CUDA graphs", graphed, folder, NEVER))
    return chosen


def _floor(group: Group, work: Work, device: str) -> tuple[float, str]:
    dtype = torch.bfloat16 if group.evaluator.precision == "bf16-mixed" else torch.float32
    product, copy = product_speed(device, dtype), copy_speed(device)
    arithmetic, traffic = work.total_flops / product, work.traffic / copy
    why = (
        f"arithmetic {arithmetic:.4f} s at {product / 1e12:.2f} TFLOPS ({dtype}), "
        f"traffic {traffic:.4f} s at {copy / 1e9:.0f} GB/s"
    )
    return max(arithmetic, traffic), why
