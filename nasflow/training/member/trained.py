"""Load the trained model of a trial from its last checkpoint."""

import logging
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import nn

from nasflow.checkpoint.store import CheckpointStore
from nasflow.clean_text import error_message, one_line
from nasflow.config.code_files import targets_of
from nasflow.config.search import SearchConfig, SupervisedConfig
from nasflow.errors import CheckpointError
from nasflow.evaluator.candidate import Candidate, candidate_space, paths_from
from nasflow.evaluator.loading.data_trainer import bare_trainer
from nasflow.evaluator.make import make_evaluator
from nasflow.load_target import refuse_changed
from nasflow.space.lazy_layers import load_lazy_layers, make_by_weights
from nasflow.space.space import Space
from nasflow.tensors import load_saved
from nasflow.training.member.rng import RngStream
from nasflow.trial import Trial

PARTS = "repeats"
"""The key of the states of the members in a trial's own, if it has several."""
_MODEL = "model"
_PREFIX = f"{_MODEL}."
_NAMES = "model_names"
_EXTRA = "_extra_state"  # the last part of the name of what a layer's `get_extra_state` gives

logger = logging.getLogger(__name__)


def where_model_is(model: nn.Module, module: nn.Module) -> dict[str, Any]:
    """Return what a checkpoint says about where a LightningModule has its candidate's model; nothing for `self.model`.

    It has the names of the model's state in the module, by those in the model; an empty one for a missing tensor.
    """
    if module._modules.get(_MODEL) is model:
        return {}
    held = _held_by(module)  # as long as this is kept, no other object has an address in it
    places = {id(tensor): name for name, tensor in held.items()}
    layers = {id(layer): name for name, layer in module.named_modules()}
    own = dict(model.named_modules(remove_duplicate=False))

    def place(name: str, value: Any) -> str:
        path, _, last = name.rpartition(".")
        if last != _EXTRA:
            return places.get(id(value), "")
        layer = layers.get(id(own.get(path)))  # each call of `get_extra_state` may give another object
        return "" if layer is None else f"{layer}.{_EXTRA}"

    return {_NAMES: {name: place(name, value) for name, value in model.state_dict(keep_vars=True).items()}}


def _held_by(module: nn.Module) -> dict[str, Any]:
    """Return a LightningModule's state dict with the tensors themselves."""
    try:
        return module.state_dict(keep_vars=True)
    except TypeError:  # one of the user's, without Lightning's need for arguments
        return nn.Module.state_dict(module, keep_vars=True)


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


def trained_weights(trial_folder: Path) -> dict[str, Any]:
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


def other_weights(trial_folder: Path) -> dict[str, Any]:
    """Return what the LightningModule has beside the model, such as another head, by the names there, on the CPU.

    Arguments and errors are those of `trained_state`.
    """
    weights, places = _module_of(trial_folder)
    if places is None:
        return {name: tensor for name, tensor in weights.items() if not name.startswith(_PREFIX)}
    return {name: tensor for name, tensor in weights.items() if name not in places.values()}


def _module_of(trial_folder: Path) -> tuple[dict[str, Any], dict[str, str] | None]:
    """Return the LightningModule's state dict, and where the model's tensors are in it, as of `where_model_is`."""
    state = trained_state(trial_folder)
    first = state[PARTS][0] if PARTS in state else state
    return state["module"], first.get(_NAMES)


def trained_model(config: SearchConfig, trial: Trial, weights: dict[str, Any]) -> nn.Module:
    """Return the trial's model with its trained weights, in eval mode on the CPU.

    Raises:
        ConfigError: this process has imported an earlier version of the model's code than there is now.
        CheckpointError: as `load_trained`.
    """
    refuse_changed(targets_of([config.space, config.evaluator]).values(), config.base_dir)
    space = candidate_space(config.space, config.evaluator, config.base_dir, with_values=True)
    where = config.base_dir
    return load_trained(space, trial.architecture, trial.seed, weights, base_dir=where, paths=where)


def load_trained(
    space: Space, architecture: Mapping[str, Any], seed: int, weights: dict[str, Any], *, base_dir: Path, paths: Path
) -> nn.Module:
    """Return a trial's model as its LightningModule has made it, with these weights, in eval mode on the CPU.

    If that module can't be set up or made here, that is logged, and the model is as it is without. Hooks that the
    module has registered on the model stay, as it was trained with them.

    Args:
        space: of candidates.
        architecture: the trial's.
        seed: the trial's.
        weights: the state dict of the model.
        base_dir: the folder of the user's code.
        paths: where relative paths start.

    Raises:
        CheckpointError: the weights are those of another model.
    """
    failure = None
    for until in ("set up", "made", "built"):
        with RngStream(seed):  # as in training: what is no weight may be drawn, too
            candidate: Candidate = space.build(architecture)  # anew: one that failed may be half changed
            with paths_from(paths):
                failed = _changed_by_module(candidate, weights, base_dir, until)
        if failed is None:
            break
        failure = failure or failed
    if failure is None:
        return with_weights(candidate.model, weights).eval()
    try:
        model = with_weights(candidate.model, weights).eval()
    except CheckpointError as error:
        raise CheckpointError(f"{error}; its LightningModule, which may have to change it, {failure}") from None
    logger.warning("the model may lack what its LightningModule changes in it beside the weights: that %s", failure)
    return model


def _changed_by_module(candidate: Candidate, weights: Mapping[str, Any], base_dir: Path, until: str) -> str | None:
    """Let a user's LightningModule change the model, as it may when it is made and set up; return why it could not."""
    from pytorch_lightning.plugins import DoublePrecision  # noqa: PLC0415 - slow
    from pytorch_lightning.utilities.model_helpers import is_overridden  # noqa: PLC0415 - slow

    if isinstance(candidate.training, SupervisedConfig) or until == "built":
        return None
    try:
        module = make_evaluator(candidate.training, base_dir).module(candidate.model)
    except Exception as error:  # the user's own code, which may need what is not here
        return f"could not be made here: {error_message(error)}"
    if until == "made" or not (is_overridden("setup", module) or is_overridden("configure_model", module)):
        return None
    module.trainer = bare_trainer()
    try:
        load_lazy_layers(candidate.model, weights)  # they have their sizes before set-up, as in training
        module.setup("fit")
        with DoublePrecision().module_init_context() if candidate.training.precision == "64-true" else nullcontext():
            module.configure_model()  # in the precision of training
    except Exception as error:  # it may need data
        return f"could not be set up here: {error_message(error)}"
    finally:
        module.trainer = None  # the model may hold the module, as in a hook
    return None


def with_weights(model: nn.Module, weights: Mapping[str, Any]) -> nn.Module:
    """Return `model` with these weights, each in its own precision. What is not saved has theirs if they have one.

    Raises:
        CheckpointError: they are those of another model.
    """
    tensors = {name: value for name, value in weights.items() if isinstance(value, torch.Tensor)}
    kinds = {tensor.dtype for tensor in tensors.values() if tensor.is_floating_point() or tensor.is_complex()}
    if len(kinds) == 1 and (kind := kinds.pop()).is_floating_point:
        model.to(kind)
    for name, tensor in model.state_dict(keep_vars=True).items():
        if name in tensors and isinstance(tensor, torch.Tensor) and tensor.dtype != tensors[name].dtype:
            tensor.data = tensor.data.to(tensors[name].dtype)
    try:
        load_saved(model, weights)
    except RuntimeError as error:
        what = one_line(" ".join(str(error).split()))
        raise CheckpointError(
            f"the trained weights do not fit the model that the space builds now; use the code of the search ({what})"
        ) from error
    make_by_weights(model)
    return model
