"""Load the trained model of a trial from its last checkpoint."""

from pathlib import Path
from typing import Any

import torch
from torch import nn

from nasflow.checkpoint.store import CheckpointStore
from nasflow.config.search import SearchConfig
from nasflow.errors import CheckpointError
from nasflow.evaluator.candidate import Candidate, candidate_space
from nasflow.space.lazy_layers import make_by_weights
from nasflow.training.member.rng import RngStream
from nasflow.trial import Trial

PARTS = "repeats"
"""The key of the states of the members in a trial's own, if it has several."""
_MODEL = "model"
_PREFIX = f"{_MODEL}."
_NAMES = "model_names"


def where_model_is(model: nn.Module, module: nn.Module) -> dict[str, Any]:
    """Return what a checkpoint says about where a LightningModule has its candidate's model; nothing for `self.model`.

    It has the names of the model's tensors in the module, by those in the model; an empty one for a missing tensor.
    """
    if module._modules.get(_MODEL) is model:
        return {}
    places = {id(tensor): name for name, tensor in module.state_dict(keep_vars=True).items()}
    return {_NAMES: {name: places.get(id(tensor), "") for name, tensor in model.state_dict(keep_vars=True).items()}}


def trained_state(trial_folder: Path) -> dict[str, Any]:
    """Return the state of a trial that has ended, with its tensors on the CPU. Nothing in the folder is changed.

    Raises:
        CheckpointError: the trial's last checkpoint is missing or can't be read.
        NewerCheckpointError: a newer nasflow has written it.
    """
    try:
        state = CheckpointStore(trial_folder).read_newest()
    except (OSError, MemoryError) as error:
        raise CheckpointError(f"the checkpoints in {trial_folder} can't be read at present: {error}") from error
    if state is None:
        raise CheckpointError(f"there is no checkpoint in {trial_folder}")
    if not state["finished"]:
        raise CheckpointError(
            f"the last checkpoint in {trial_folder} is missing or damaged: the newest that can be read is of epoch "
            f"{state['epoch']}, after which the trial went on; put its files back from a copy"
        )
    return state


def trained_weights(trial_folder: Path) -> dict[str, torch.Tensor]:
    """Return the state dict of the trained model of a trial that has ended, on the CPU.

    Args:
        trial_folder: with its checkpoints.

    Raises:
        CheckpointError: as `trained_state`, or the checkpoint has not all of the model.
        NewerCheckpointError: as `trained_state`.
    """
    weights, places = _module_of(trial_folder)
    if places is None:
        return {name.removeprefix(_PREFIX): t for name, t in weights.items() if name.startswith(_PREFIX)}
    if missing := [name for name, place in places.items() if place not in weights]:
        raise CheckpointError(
            f"the LightningModule does not hold all of the model that it was given ('{missing[0]}' is missing, of "
            f"{len(missing)}), so {trial_folder} has no trained model; keep the whole model in it, such as self.model"
        )
    return {name: weights[place] for name, place in places.items()}


def other_weights(trial_folder: Path) -> dict[str, torch.Tensor]:
    """Return what the LightningModule has beside the model, such as another head, by the names there, on the CPU.

    Arguments and errors are those of `trained_state`.
    """
    weights, places = _module_of(trial_folder)
    if places is None:
        return {name: tensor for name, tensor in weights.items() if not name.startswith(_PREFIX)}
    return {name: tensor for name, tensor in weights.items() if name not in places.values()}


def _module_of(trial_folder: Path) -> tuple[dict[str, torch.Tensor], dict[str, str] | None]:
    """Return the LightningModule's state dict, and where the model's tensors are in it, as of `where_model_is`."""
    state = trained_state(trial_folder)
    first = state[PARTS][0] if PARTS in state else state
    return state["module"], first.get(_NAMES)


def trained_model(config: SearchConfig, trial: Trial, weights: dict[str, torch.Tensor]) -> nn.Module:
    """Return the trial's model with its trained weights, in eval mode on the CPU."""
    space = candidate_space(config.space, config.evaluator, config.base_dir)
    with RngStream(trial.seed):  # as in training: what is no weight may be drawn, too
        candidate: Candidate = space.build(trial.architecture)
    return with_weights(candidate.model, weights).eval()


def with_weights(model: nn.Module, weights: dict[str, torch.Tensor]) -> nn.Module:
    """Return `model` with these weights, in their precision."""
    floating = next((tensor.dtype for tensor in weights.values() if tensor.is_floating_point()), None)
    if floating is not None:
        model.to(floating)
    model.load_state_dict(weights)
    make_by_weights(model)
    return model
