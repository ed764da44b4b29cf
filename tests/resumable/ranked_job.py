"""Two ranks that share a layer's rows: `python ranked_job.py FOLDER RANK PORT JOB`, where JOB is JSON.

It has `epochs`, and may have `die_at`, `resume_from` and `ranks_per_machine`; with the last, each machine has a folder
in FOLDER.
"""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from nasflow.resumable.job import Call, EpochLimit, Job, JobRunner
from nasflow.resumable.multi_node import RankedCheckpointManager

WORLD = 2


def begin(state: dict[str, Any]) -> None:
    """A layer of which each rank has half the rows."""
    mesh = init_device_mesh("cpu", (WORLD,))
    layer = nn.Linear(2, 4, bias=False)
    layer.weight = nn.Parameter(distribute_tensor(torch.zeros(4, 2), mesh, [Shard(0)]))
    state |= {"layer": layer, "count": 0}


def step(state: dict[str, Any], die_at: int) -> None:
    """Rows grow, each by its rank."""
    if state["epoch"] + 1 == die_at and dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    local = state["layer"].weight.to_local()
    local.data += 1 + dist.get_rank()
    state["count"] += 1
    state.setdefault("first", state["epoch"] + 1)


def main(folder: str, rank: str, port: str, job: str) -> None:
    """Run."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    dist.init_process_group("gloo", rank=int(rank), world_size=WORLD)
    told = json.loads(job)
    steps = Job([begin], [Call(step, die_at=told.get("die_at", 0))], stop=[EpochLimit(told["epochs"])])
    here = told.get("ranks_per_machine")
    place = Path(folder) / str(int(rank) // here) if here else Path(folder)
    checkpoints = RankedCheckpointManager(place, ["layer", "count"], ranks_per_machine=here)
    state = JobRunner(steps, checkpoints, told.get("resume_from")).run()
    weight = state["layer"].weight
    assert isinstance(weight, DTensor)
    print(rank, state["first"], state["epoch"], state["count"], weight.to_local().flatten().tolist())
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
