"""A candidate: a model and the config that trains it. One space covers the choices of both."""

import copy
import logging
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_map_only

from nasflow.config.search import CommandConfig, ProgramConfig, Target, TrainingConfig
from nasflow.errors import ConfigError, SharedLayerError, SpaceError
from nasflow.evaluator.lazy_layers import complete, first_batch
from nasflow.evaluator.loading.data_source import fingerprint, load_data
from nasflow.evaluator.loading.data_trainer import bare_trainer
from nasflow.evaluator.make import make_evaluator
from nasflow.evaluator.searched_values import close_searched
from nasflow.load_target import load_target
from nasflow.space.lazy_layers import count_parameters, lazy_layers
from nasflow.space.pick import Pick
from nasflow.space.shared_layers import Owners
from nasflow.space.space import Space
from nasflow.system.present_folder import in_folder

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Candidate:
    """The model that an architecture builds, and the training config with the architecture's values."""

    model: nn.Module
    config: TrainingConfig | ProgramConfig

    @property
    def training(self) -> TrainingConfig:
        """The config of a candidate that nasflow trains. Raises ConfigError for one that has a program of its own."""
        if not isinstance(self.config, TrainingConfig):
            raise ConfigError(
                "evaluator.kind: trials are trained by their own program, which nasflow can't merge or score"
            )
        return self.config

    @property
    def epochs(self) -> int:
        """The number of epochs to train, if it is not stopped early."""
        epochs, stop = self.config.epochs, self.config.stop_after
        return int(epochs if stop is None else min(epochs, stop))  # type: ignore[arg-type, type-var]

    @property
    def parameters(self) -> int:
        """The number of the model's parameters, frozen ones too. Lazy layers have none before their first input."""
        return count_parameters(self.model)


def candidate_space(
    space: Target,
    evaluator: TrainingConfig | ProgramConfig,
    base_dir: Path,
    paths: Path | None = None,
    *,
    with_values: bool = False,
) -> Space:
    """Return the space of a search. Its `build(architecture)` returns a Candidate; model labels come first.

    While it builds, relative paths start in `paths` (default: `base_dir`), as in jobs, if there is such a folder.
    Models that it builds for inspection have their lazy layers initialized from a batch of the data. If that fails, it
    is logged, because the trial will fail for the same reason.

    Raises:
        ConfigError: the space's target can't be imported or called. The space itself raises a SharedLayerError if two
            models that it built share a layer that training would change, and `with_values` (for models that are
            trained or used here) a SpaceError if one has a tensor without values that it keeps from an earlier one.
    """
    base_dir = base_dir.absolute()
    paths = paths or base_dir
    with paths_from(paths):
        build = load_target(space.target, base_dir)
    if not callable(build):
        raise ConfigError(f"space.target: {space.target} is not callable; it should be build(pick, **params)")

    owners = Owners()

    def program(pick: Pick) -> Candidate:
        with paths_from(paths):
            model: Any = build(pick, **copy.deepcopy(space.params))  # it may change its own
        if isinstance(evaluator, CommandConfig) and not isinstance(model, nn.Module):
            model = nn.Module()  # the program makes its own
        if not isinstance(model, nn.Module):
            raise ConfigError(
                f"space.target: {space.target} gave a {type(model).__name__}; it should give an nn.Module"
            )
        if shared := owners.claim(model, object()):
            raise SharedLayerError(
                f"space.target: {space.target} makes {shared.what} outside of build(pick), so all trials would train "
                "the same one; make it within build(pick), or freeze it by requires_grad_(False) and eval()"
            )
        if with_values and torch.get_default_device().type != "meta":
            _refuse_hollow(model, space.target)
        config = close_searched(evaluator, pick)
        for key in ("epochs", "stop_after"):
            number = getattr(config, key)
            if number is not None and number < 1:
                raise ConfigError(f"evaluator.{key}: is {number}; it should be at least 1")
        return Candidate(model, config)

    batches: dict[str, Any] = {}

    def completed(candidate: Candidate) -> bool:
        if not lazy_layers(candidate.model) or isinstance(candidate.config, ProgramConfig):
            return True
        device = torch.get_default_device()
        try:
            data = candidate.training.data
            with paths_from(paths):
                if (name := fingerprint(data)) not in batches:
                    with torch.device("cpu"), torch.random.fork_rng(devices=[]):
                        batches[name] = first_batch(load_data(data, base_dir, folds=candidate.training.folds))
                complete_candidate(candidate, batches[name], base_dir)
        except Exception as error:  # its job will find and report it
            if device.type != "meta":
                logger.warning("space '%s': sizes of lazy layers are not known here: %s", space.target, error)
            return False
        return True

    return Space(program, space.target, completed)


def _refuse_hollow(model: nn.Module, target: str) -> None:
    """Raise SpaceError if some of a model's tensors have no values: they were made when the space was explored."""
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    hollow = [name for name, tensor in tensors.items() if tensor.is_meta]
    if 0 < len(hollow) < len(tensors):  # a model that has none was made so, to be filled later
        raise SpaceError(
            f"space.target: {target} keeps '{hollow[0]}' from an earlier build, such as in a cache, when the space was "
            "explored without values; make it in each build(pick), or name its device: torch.arange(n, device='cpu')"
        )


def paths_from(folder: Path) -> AbstractContextManager[None]:
    """Let relative paths start in `folder` in a block; where they did if it is gone, as installed code needs none."""
    return in_folder(folder) if folder.is_dir() else nullcontext()


def complete_candidate(candidate: Candidate, batch: Any, base_dir: Path) -> None:
    """Initialize the lazy layers of a candidate's model on its own device. The model can't be trained afterwards.

    Raises:
        ConfigError: `batch` does not reach a lazy layer; the message names it.
        Exception: whatever the user's training step raises.
    """
    device = torch.get_default_device()

    def moved(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(device, torch.float32 if tensor.is_floating_point() else None)  # as models are built

    module = make_evaluator(candidate.training, base_dir).module(candidate.model)
    module.trainer = bare_trainer()
    module.setup("fit")
    complete(module, tree_map_only(torch.Tensor, moved, batch))
