"""Jobs of trials on several devices, run as a service runs them: in processes that have imported torch."""

import os
from collections import Counter
from pathlib import Path
from typing import Any

from nasflow.checkpoint.store import CheckpointStore
from nasflow.job.events import Event, parse_event, read_lines
from nasflow.job.spec import JobSpec, job_dir, trial_dir
from tests.flows.forked_commands import start_forked
from tests.training.jobs import evaluator, make_job, train
from tests.training.wide import killed_job

SGD = {"name": "sgd", "lr": 0.1, "momentum": 0.9}
UNEVEN = {"target": "spaces.py:blobs", "params": {"batch_size": 21}}
"""Three batches of 21 samples, and one of a single one."""


def wide(strategy: str = "ddp", devices: int = 2, space: str = "deep", nodes: int = 1, **values: Any) -> JobSpec:
    return job(space, parallel={"strategy": strategy, "devices": devices, "nodes": nodes}, **values)


def job(space: str = "deep", **values: Any) -> JobSpec:
    """A job of one trial in double precision."""
    architecture = values.pop("architecture", {})
    own = {} if "module" in values else {"optimizer": SGD}
    config = evaluator(**{"epochs": 3, "precision": "64-true", "data": UNEVEN, **own, **values})
    return make_job(f"spaces.py:{space}", config, [architecture])


def own_module(name: str) -> dict[str, Any]:
    """The keys of an evaluator with a module of modules.py."""
    return {"kind": "lightning", "module": {"target": f"{Path(__file__).parent / 'modules.py'}:{name}"}}


def run(spec: JobSpec, root: Path, *killed: object) -> tuple[int, list[Event]]:
    """The exit code of a job's process, and the events of this start; `killed` says where one of its ranks is."""
    file = job_dir(root, spec.job_id) / "job.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(spec.model_dump_json())
    events = file.with_name("events.jsonl")
    offset = events.stat().st_size if events.exists() else 0
    command = ["python", killed_job.__file__, file, root / "log", *killed]
    program = start_forked(command, Path.cwd(), {**os.environ, "OMP_NUM_THREADS": "1"})
    output = program.communicate(timeout=120)[0]
    print(output)  # shown if the test fails
    lines, _ = read_lines(events, offset)
    return program.wait(), [event for line in lines if (event := parse_event(line)) is not None]


def trained(root: Path) -> dict[int, list[int]]:
    """How often the epochs were trained to their ends, by rank."""
    counts: Counter[tuple[int, int]] = Counter()
    for line in (root / "log").read_text().splitlines():
        rank, epoch = line.split()
        counts[int(rank), int(epoch)] += 1
    ranks = sorted({rank for rank, _ in counts})
    return {rank: [counts[rank, epoch] for epoch in sorted(e for r, e in counts if r == rank)] for rank in ranks}


def state(root: Path) -> dict[str, Any]:
    found = CheckpointStore(trial_dir(root, 0)).load_newest()
    assert found is not None
    return found


def assert_equal(one: dict[str, Any], other: dict[str, Any], most: float = 1e-12) -> None:
    """The same metrics in each epoch, and the same weights."""
    assert len(one["history"]) == len(other["history"])
    for mine, theirs in zip(one["history"], other["history"], strict=True):
        assert mine.keys() == theirs.keys()
        for name in mine:  # torchmetrics computes in single precision
            assert abs(mine[name] - theirs[name]) <= (most if "loss" in name else 1e-6), name
    assert one["module"].keys() == other["module"].keys()
    for name, weights in one["module"].items():
        assert weights.dtype == other["module"][name].dtype
        assert (weights - other["module"][name]).abs().max() <= most, name


def solo(spec: JobSpec, root: Path) -> dict[str, Any]:
    """The newest state of the same trial trained by one process, here."""
    without = spec.evaluator.model_copy(update={"parallel": None})
    train(spec.model_copy(update={"evaluator": without}), root)
    return state(root)
