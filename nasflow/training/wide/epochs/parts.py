"""What ranks save of a trial together after each epoch, each of them its part."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from nasflow.checkpoint.bundle import NewerCheckpointError
from nasflow.errors import CheckpointError, InfrastructureError
from nasflow.resumable.job import State
from nasflow.resumable.multi_node import RankedCheckpointManager, epochs_in
from nasflow.training.wide.epochs import epoch_files
from nasflow.training.wide.epochs.epoch_files import ranks_folder

NAMES = ("model", "optimizer", "rest")
"""The parts: the module, its optimizer's state, and what all ranks have (`WideMember.rest`)."""


class OptimizerPart:
    """An optimizer's state, by each parameter's position. If parameters are sharded, a rank has only its shard."""

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

    A job that another controller's has replaced saves elsewhere.

    Args:
        trial: the trial's folder.
        ranks_per_machine: of machines that share no folder.
    """

    def __init__(self, trial: Path, generation: int, keep: int, ranks_per_machine: int | None = None):
        self._trial, self._generation = trial, generation
        self._managers = [
            RankedCheckpointManager(ranks_folder(trial, each), NAMES, keep, ranks_per_machine)
            for each in range(generation, -1, -1)
        ]

    def is_due(self, epoch: int) -> bool:
        """Always true."""
        return True

    def save(self, state: State, epoch: int) -> None:
        """Save an epoch; it counts once every rank has saved its part."""
        if epoch:
            with _blaming_the_machine():
                self._managers[0].save(state, epoch)
                if dist.get_rank() == 0:
                    epoch_files.show(self._trial, self._generation)

    def load(self, state: State, epoch: int | None = None) -> int | None:
        """Load an epoch, by default the newest that all ranks have saved, of the newest generation that has one."""
        with _blaming_the_machine():
            for manager in self._managers:
                if (found := manager.load(state, epoch)) is not None:
                    return found
            return None

    def wait(self) -> None:
        """Do nothing: `save` returns after writing."""


@contextmanager
def _blaming_the_machine() -> Iterator[None]:
    """Raise InfrastructureError for what a disk or a file on it does not allow: no trial is to blame for that."""
    try:
        yield
    except (OSError, MemoryError, CheckpointError, NewerCheckpointError) as error:
        raise InfrastructureError(f"the ranks' checkpoints can't be saved or loaded: {error}") from error


def earlier_folder(trial: Path, generation: int) -> Path:
    """Return where the newest epochs are that count for a job: its own, or those of an earlier controller's."""
    folders = [ranks_folder(trial, each) for each in range(generation, -1, -1)]
    return next((folder for folder in folders if epochs_in(folder)), folders[0])


def _room(parameter: torch.Tensor, value: Any) -> Any:
    if not (isinstance(value, torch.Tensor) and value.is_meta):
        return value
    if isinstance(parameter, DTensor) and parameter.shape == value.shape:
        return torch.empty_like(parameter.detach(), dtype=value.dtype)
    return torch.empty_like(value, device=parameter.device)
