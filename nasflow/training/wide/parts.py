"""What ranks save of a trial together after each epoch, each of them its part."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from nasflow.job.spec import JobSpec, trial_dir
from nasflow.resumable.job import State
from nasflow.resumable.multi_node import RankedCheckpointManager

NAMES = ("model", "optimizer", "rest")
"""The parts: the module, its optimizer's state, and what all ranks have (`WideMember.rest`)."""


class OptimizerPart:
    """The state of an optimizer by its parameters' places, of which each rank has a part if they are sharded."""

    def __init__(self, optimizer: torch.optim.Optimizer):
        self._optimizer = optimizer

    def state_dict(self) -> dict[str, Any]:
        """Return the state of each parameter that has one, and the groups."""
        held = self._optimizer.state_dict()
        return {**held, "state": {str(place): state for place, state in held["state"].items()}}

    def targets(self, saved: Mapping[str, Any]) -> dict[str, Any]:
        """Return tensors for what was saved, divided among ranks as the parameters are."""
        parameters = [parameter for group in self._optimizer.param_groups for parameter in group["params"]]
        states = {
            place: {name: _room(parameters[int(place)], value) for name, value in state.items()}
            for place, state in saved["state"].items()
        }
        return {**saved, "state": states}

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Continue from a state."""
        states = {int(place): state for place, state in saved["state"].items()}
        self._optimizer.load_state_dict({**saved, "state": states})


class EpochCheckpoints:
    """The checkpoints of one trial, for a `JobRunner`; none is saved before the first epoch, which the seed gives.

    Args:
        own: where epochs are saved.
        earlier: from where they are loaded.
    """

    def __init__(self, own: Path, earlier: Path, keep: int):
        self._own = RankedCheckpointManager(own, NAMES, keep)
        self._earlier = RankedCheckpointManager(earlier, NAMES, keep)

    def is_due(self, epoch: int) -> bool:
        """Always true."""
        return True

    def save(self, state: State, epoch: int) -> None:
        """Save an epoch; it counts once every rank has saved its part."""
        if epoch:
            self._own.save(state, epoch)

    def load(self, state: State, epoch: int | None = None) -> int | None:
        """Load an epoch, by default the newest that all ranks have saved."""
        return self._earlier.load(state, epoch)

    def wait(self) -> None:
        """Do nothing: `save` returns after writing."""


def own_folder(job: JobSpec, root: Path, trial: int) -> Path:
    """Return where the ranks of a job save. A job that another controller's has replaced saves elsewhere."""
    return trial_dir(root, trial) / "ranks" / str(job.generation)


def earlier_folder(job: JobSpec, root: Path, trial: int) -> Path:
    """Return where the newest epochs are that count for a job: its own, or those of an earlier controller's."""
    own = own_folder(job, root, trial)
    for generation in range(job.generation, -1, -1):
        folder = own.with_name(str(generation))
        if RankedCheckpointManager(folder, NAMES).epochs():
            return folder
    return own


def _room(parameter: torch.Tensor, value: Any) -> Any:
    if not (isinstance(value, torch.Tensor) and value.is_meta):
        return value
    if isinstance(parameter, DTensor) and parameter.shape == value.shape:
        return torch.empty_like(parameter.detach(), dtype=value.dtype)
    return torch.empty_like(value, device=parameter.device)
