"""Load the trained model of a trial from its newest checkpoint."""

from pathlib import Path

import torch
from torch import nn

from nasflow.checkpoint.store import CheckpointStore
from nasflow.config.search import SearchConfig
from nasflow.errors import CheckpointError
from nasflow.evaluator.candidate import Candidate, candidate_space
from nasflow.space.lazy_layers import make_by_weights
from nasflow.trial import Trial

_PREFIX = "model."


def trained_weights(trial_folder: Path) -> dict[str, torch.Tensor]:
    """Return the state dict of the model after its last checkpointed epoch, on the CPU.

    Raises:
        CheckpointError: the folder has no checkpoint that can be read.
    """
    state = CheckpointStore(trial_folder).load_newest()
    if state is None:
        raise CheckpointError(f"there is no checkpoint in {trial_folder}")
    return {name.removeprefix(_PREFIX): t for name, t in state["module"].items() if name.startswith(_PREFIX)}


def trained_model(config: SearchConfig, trial: Trial, weights: dict[str, torch.Tensor]) -> nn.Module:
    """Return the trial's model with its trained weights, in eval mode on the CPU."""
    space = candidate_space(config.space, config.evaluator, config.base_dir)
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
