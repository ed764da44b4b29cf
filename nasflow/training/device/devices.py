"""The devices of a job, each of which trains a part of its members."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from lightning_fabric.utilities.apply_func import move_data_to_device

from nasflow.training.batches.batch_runs import Run
from nasflow.training.batches.transfer import run_on


class Devices:
    """The first GPUs that this process sees; without one, logical devices, which are all the CPU.

    A job has so many as its members' specs name, at most those that are there: a member that is assigned to device 5 of
    a job with two GPUs trains on GPU 1. Each batch is loaded, augmented and moved to the first device once, and from
    there it is copied to the others.

    Args:
        count: how many are wanted.

    Attributes:
        all: the devices, by their indices in the job.
        copied: runs of batches that were copied from the first device, by device.
    """

    def __init__(self, count: int):
        gpus = min(count, torch.cuda.device_count()) if torch.cuda.is_available() else 0
        self.all = [torch.device("cuda", index) for index in range(gpus)] or [torch.device("cpu")] * count
        self.copied = [0] * len(self.all)

    def index(self, assigned: int) -> int:
        """Return the index in this job of the device that a member is assigned to."""
        return assigned % len(self.all)

    def entered(self, index: int) -> AbstractContextManager[Any]:
        """Within this, CUDA's current device is this one: what code of a user calls `cuda` is the member's own GPU."""
        device = self.all[index]
        return torch.cuda.device(device) if device.type == "cuda" and len(self.all) > 1 else nullcontext()

    def copies(self, run: Sequence[Any]) -> "Copies":
        """Return the copies of batches that are on the first device."""
        return Copies(self, run)


class Copies:
    """A run of batches on the devices of a job: copied to one, all at once, when its first unit asks for them."""

    def __init__(self, devices: Devices, run: Sequence[Any]):
        self._devices = devices
        self._runs = {0: run}

    def on(self, index: int) -> Sequence[Any]:
        """Return the batches on a device."""
        if index not in self._runs:
            device, run = self._devices.all[index], Run(self._runs[0])
            self._runs[index] = run_on(device, run) or [move_data_to_device(batch, device) for batch in run]
            self._devices.copied[index] += 1
        return self._runs[index]
