"""Rank 0 sends a pickle that runs code, rank 1 loads a checkpoint: `python hostile_rank.py FOLDER RANK PORT`."""

import os
import sys
from pathlib import Path
from typing import Any

import torch.distributed as dist

from nasflow.resumable.multi_node import RankedCheckpointManager


class Hostile:
    """Its pickle makes a file where it is unpickled."""

    def __init__(self, file: Path):
        self._file = file

    def __reduce__(self) -> Any:
        return Path.touch, (self._file,)


def main(folder: str, rank: str, port: str) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    dist.init_process_group("gloo", rank=int(rank), world_size=2)
    if rank == "0":
        dist.broadcast_object_list([Hostile(Path(folder) / "harm")])
    else:
        RankedCheckpointManager(Path(folder), ["count"]).load({})


if __name__ == "__main__":
    main(*sys.argv[1:])
