"""Whether members get the same results merged and alone on a device: `python -m benchmarks.gpu.equality`.

Jobs train the same members in float64: in one each trains by itself, in the others all that can be fused are, on a
GPU a second time with `merge.cuda_graphs`. The members are W9's twenty kinds of models (perceptrons, convolutions
with batch norm, attention, recurrent, depthwise, gated), by SGD, which lets rounding grow little. Compared are all
metrics of every epoch, and all numbers in the last checkpoints.
"""

import argparse
import json
import math
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_flatten_with_path

from benchmarks.merging.contestants import run_job
from benchmarks.merging.group import Group
from benchmarks.merging.workloads import w9_unlike
from benchmarks.merging.workloads.unlike import KINDS
from nasflow.checkpoint.store import CheckpointStore
from nasflow.config.search import MergeConfig, OptimizerConfig
from nasflow.job.events import Epoch, Event, Evicted, Planned
from nasflow.job.spec import trial_dir

TOLERANCE = 1e-9


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare, and print a line of JSON. Return 1 if members differ."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--members", type=int, default=40)
    parser.add_argument("--epochs", type=int, default=2)
    options = parser.parse_args(arguments)
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("torch sees no CUDA GPU here; --device cpu")
    group = make_group(options.members, options.epochs)
    with tempfile.TemporaryDirectory() as folder:
        alone = _train(group, MergeConfig(fuse="never"), Path(folder) / "alone")
        merged = [_train(group, MergeConfig(fuse="always"), Path(folder) / "merged")]
        if options.device == "cuda":
            graphs = MergeConfig(fuse="always", cuda_graphs=True)
            merged.append(_train(group, graphs, Path(folder) / "graphs"))
        worst: dict[str, float] = {}
        for kind, difference in (found for each in merged for found in _differences(group, each, alone)):
            worst[kind] = max(difference, worst.get(kind, 0.0))
    fused = sum(len(unit.members) for event in merged[0][0] if isinstance(event, Planned) for unit in event.units)
    failed = [event.error for events, _ in [alone, *merged] for event in events if isinstance(event, Evicted)]
    bad = {kind: difference for kind, difference in worst.items() if not difference <= TOLERANCE}
    found = {"members": len(group), "fused": fused, "tolerance": TOLERANCE, "differ": bad, "failed": failed}
    sys.stdout.write(json.dumps({**found, "largest": max(worst.values(), default=0.0), "by_kind": worst}) + "\n")
    return int(bool(bad or failed or fused < len(group) // 2))


def make_group(members: int, epochs: int) -> Group:
    """Return members of the twenty kinds."""
    group = w9_unlike.make_group(list(KINDS), members, epochs, 0)
    changes = {"precision": "64-true", "optimizer": OptimizerConfig(name="sgd", lr=0.01)}
    members_ = tuple(
        member.model_copy(update={"architecture": {"kind": member.architecture["kind"]}}) for member in group.members
    )
    return replace(group, evaluator=group.evaluator.model_copy(update=changes), members=members_)


def _train(group: Group, merge: MergeConfig, root: Path) -> tuple[list[Event], Path]:
    root.mkdir()
    return run_job(replace(group, merge=merge).job("job"), root), root


def _differences(
    group: Group, merged: tuple[list[Event], Path], alone: tuple[list[Event], Path]
) -> Iterator[tuple[str, float]]:
    """Yield of each member its kind and its largest difference, as a share of the larger of both numbers, or of 1."""
    both = [_results(group, *one) for one in (merged, alone)]
    for member in group.members:
        one, other = (results.get(member.trial) for results in both)
        same_names = one is not None and other is not None and one.keys() == other.keys()
        largest = max(_difference(one[key], other[key]) for key in one) if one and other and same_names else math.inf
        yield str(member.architecture["kind"]), largest


def _results(group: Group, events: list[Event], root: Path) -> dict[int, dict[str, torch.Tensor]]:
    """Return metrics and weights by trial."""
    found: dict[int, dict[str, Any]] = {}
    for event in events:
        if isinstance(event, Epoch):
            metrics = {f"{name} {event.epoch}": torch.tensor(value) for name, value in event.metrics.items()}
            found.setdefault(event.trial, {}).update(metrics)
    for trial, results in found.items():
        leaves, _ = tree_flatten_with_path(CheckpointStore(trial_dir(root, trial)).load(group.epochs))
        tensors = {str(path): leaf for path, leaf in leaves if isinstance(leaf, torch.Tensor)}
        results.update({path: tensor for path, tensor in tensors.items() if tensor.is_floating_point()})
    return found


def _difference(one: torch.Tensor, other: torch.Tensor) -> float:
    if one.shape != other.shape:
        return math.inf
    scale = torch.maximum(one.abs(), other.abs()).clamp_min(1.0)
    return float(((one - other).abs() / scale).max()) if one.numel() else 0.0


if __name__ == "__main__":
    sys.exit(main())
