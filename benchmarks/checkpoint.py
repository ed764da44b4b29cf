"""The cost of checkpoints: `python -m benchmarks.checkpoint`.

Jobs of 1, 16 and 128 mixed perceptrons (those of W1) are trained with a checkpoint of every member after every epoch,
and with only the first and the last one, interleaved, on one thread. More data makes the epochs as long as requested,
so that the share of an epoch is measured, not calculated. The processor's time, of all threads, is given beside it: it
is the steadier figure on a busy machine. The bytes in the files of one epoch are compared with those of the tensors in
them (weights, optimizer, random streams).
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from rich.progress import track
from rich.table import Table

from benchmarks.merging.contestants import accuracies_of, run_job
from benchmarks.merging.group import NEVER, Group
from benchmarks.merging.pinning import pin
from benchmarks.merging.report import print_table
from benchmarks.merging.workloads import w1_mlps
from nasflow.checkpoint.packing import pack
from nasflow.checkpoint.store import CheckpointStore
from nasflow.job.spec import trial_dir

TARGET = 0.02


@dataclass(frozen=True)
class Cost:
    """The results for one number of members.

    Attributes:
        saved: seconds of each run with checkpoints; `unsaved` without, and of the processor's time `saved_cpu` and
            `unsaved_cpu`.
        file_bytes: a member.
        tensor_bytes: a member.
    """

    members: int
    epochs: int
    saved: list[float]
    unsaved: list[float]
    saved_cpu: list[float]
    unsaved_cpu: list[float]
    file_bytes: float
    tensor_bytes: float

    @property
    def epoch(self) -> float:
        """Seconds of an epoch without checkpoints."""
        return statistics.median(self.unsaved) / self.epochs

    @property
    def share(self) -> float:
        """A checkpoint's share of an epoch's time: the median over the repeats of the ratio within each."""
        ratios = [on / off - 1 for on, off in zip(self.saved, self.unsaved, strict=True)]
        return statistics.median(ratios) * self.epochs / (self.epochs - 1)  # the last is saved in both

    @property
    def cpu(self) -> float:
        """Seconds of the processor's time for a checkpoint: the median over the repeats."""
        spent = [on - off for on, off in zip(self.saved_cpu, self.unsaved_cpu, strict=True)]
        return statistics.median(spent) / (self.epochs - 1)


def measure(group: Group, repeats: int) -> Cost:
    """Run the group with and without checkpoints, interleaved, after a warm-up of each."""
    times: dict[int, list[float]] = {1: [], NEVER: []}
    cpu: dict[int, list[float]] = {1: [], NEVER: []}
    sizes = (0.0, 0.0)
    for repeat in range(-1, repeats):
        for every in sorted(times, reverse=repeat % 2 == 0):
            with tempfile.TemporaryDirectory() as folder:
                began, began_cpu = time.perf_counter(), time.process_time()
                accuracies_of(run_job(group.job("job", every), Path(folder)))
                seconds, spent = time.perf_counter() - began, time.process_time() - began_cpu
                if repeat >= 0:
                    times[every].append(seconds)
                    cpu[every].append(spent)
                elif every == 1:
                    sizes = _sizes(group, Path(folder))
    return Cost(len(group), group.epochs, times[1], times[NEVER], cpu[1], cpu[NEVER], *sizes)


def _sizes(group: Group, root: Path) -> tuple[float, float]:
    """Return bytes per member: of the files of the last epoch, and of the tensors in them."""
    files, tensors = dict[int, int](), 0
    for member in group.members:
        store = CheckpointStore(trial_dir(root, member.trial))
        stat = store.path(group.epochs).stat()
        files[stat.st_ino] = stat.st_size
        _, blocks = pack(store.load(group.epochs))
        tensors += sum(block.nbytes for block in blocks.values())
    return sum(files.values()) / len(group), tensors / len(group)


def lengthened(group: Group, seconds: float) -> Group:
    """Return the group with batches so small that an epoch takes about `seconds`."""
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        run_job(_changed(group, {"epochs": 6}).job("a", NEVER), Path(folder))
        one = (time.perf_counter() - began) / 6
    params = {**group.evaluator.data.params, "batch_size": max(1, round(64 * one / seconds))}
    return _changed(group, {"data": group.evaluator.data.model_copy(update={"params": params})})


def _changed(group: Group, changes: dict[str, Any]) -> Group:
    return replace(group, evaluator=group.evaluator.model_copy(update=changes))


def main(arguments: Sequence[str]) -> int:
    """Measure and print. Return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--members", type=int, nargs="+", default=[1, 16, 128])
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=1.0, help="of an epoch, about")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    costs = []
    for members in track(options.members, "members", transient=True):
        group = lengthened(w1_mlps.make_group("a", members, options.epochs, 0), options.seconds)
        costs.append(measure(group, options.repeats))
    _show(costs)
    sys.stdout.write(
        json.dumps([vars(cost) | {"epoch": cost.epoch, "share": cost.share, "cpu": cost.cpu} for cost in costs]) + "\n"
    )
    return 0


def _show(costs: Sequence[Cost]) -> None:
    heads = [
        "members",
        "epoch",
        "a checkpoint of all takes",
        "of an epoch",
        "processor",
        "files a member",
        "its tensors",
        "ratio",
    ]
    table = Table(*heads, title=f"A checkpoint of every member after every epoch (aim: at most {TARGET:.0%})")
    for cost in costs:
        table.add_row(
            str(cost.members),
            f"{cost.epoch:.2f} s",
            f"{1000 * cost.share * cost.epoch:.1f} ms",
            f"{cost.share:.1%}",
            f"{1000 * cost.cpu:.1f} ms",
            f"{cost.file_bytes:.0f} B",
            f"{cost.tensor_bytes:.0f} B",
            f"{cost.file_bytes / cost.tensor_bytes:.2f}",
        )
    print_table(table)


if __name__ == "__main__":
    pin("benchmarks.checkpoint")
    sys.exit(main(sys.argv[1:]))
