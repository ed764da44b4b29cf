"""What a merged training step asks of a device: `python -m benchmarks.gpu.steps`.

Counts kernel launches, graph launches, copies and synchronizations in PyTorch's profiler; on a CPU, operations and
reads of single numbers. A job's start (planning, comparisons, compiling) is left out: counted is what an epoch more
adds, its validation and checkpoint included, divided by its training steps.
"""

import argparse
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.merging.contestants import run_job
from benchmarks.merging.group import NEVER, Group
from benchmarks.merging.workloads import w6_gpu
from nasflow.config.search import MergeConfig

_EPOCHS = (2, 4)
_SORTS = {
    "kernel launches": ("cudaLaunchKernel", "cuLaunchKernel"),
    "graph launches": ("cudaGraphLaunch",),
    "copies": ("cudaMemcpy", "cuMemcpy"),
    "synchronizations": (
        "cudaStreamSynchronize",
        "cudaDeviceSynchronize",
        "cudaEventSynchronize",
        "cuStreamSynchronize",
    ),
    "operations": ("aten::",),
    "reads of one number": ("aten::_local_scalar_dense",),
}
"""What is counted, by how the profiler's names begin."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Count, and print a line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--members", type=int, nargs="+", default=[16, 1024], help="perceptrons of a job, job by job")
    options = parser.parse_args(arguments)
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("torch sees no CUDA GPU here; --device cpu")
    torch.set_num_threads(1)
    ways = [MergeConfig(), MergeConfig(cuda_graphs=True)] if options.device == "cuda" else [MergeConfig()]
    groups = [_perceptrons(members, options.device) for members in options.members]
    found = [measure(replace(group, merge=way), options.device) for group in groups for way in ways]
    sys.stdout.write(json.dumps(found) + "\n")
    return 0


def measure(group: Group, device: str) -> dict[str, Any]:
    """Return what a step of the group costs: counts of it, and bytes of the device's memory at the peak."""
    fewer, more = (_with_epochs(group, epochs) for epochs in _EPOCHS)
    _run(fewer)  # a warm-up: what is compiled or measured once is in the caches after it
    before, after = _counts(fewer, device), _counts(more, device)
    steps = (_EPOCHS[1] - _EPOCHS[0]) * len(group.load().train)  # type: ignore[arg-type]
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        _run(fewer)
    return {
        "members": len(group),
        "cuda_graphs": group.merge.cuda_graphs,
        "steps": steps,
        "a_step": {sort: round((after[sort] - before[sort]) / steps, 2) for sort in _SORTS if after[sort]},
        "peak_bytes": torch.cuda.max_memory_allocated() if device == "cuda" else None,
    }


def _perceptrons(members: int, device: str) -> Group:
    arguments = argparse.Namespace(model="mlp", device=device, members=members, epochs=_EPOCHS[0], seed=0)
    return w6_gpu.make_group(arguments)


def _with_epochs(group: Group, epochs: int) -> Group:
    return replace(group, evaluator=group.evaluator.model_copy(update={"epochs": epochs}))


def _run(group: Group) -> None:
    with tempfile.TemporaryDirectory() as folder:
        run_job(group.job("job", NEVER), Path(folder))


def _counts(group: Group, device: str) -> Counter[str]:
    """Return how often a job does each sort of thing."""
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device == "cuda" else [])]
    with profile(activities=activities) as profiled:
        _run(group)
    found: Counter[str] = Counter()
    for event in profiled.events():
        for sort, names in _SORTS.items():
            found[sort] += event.name.startswith(names)
    return found


if __name__ == "__main__":
    sys.exit(main())
