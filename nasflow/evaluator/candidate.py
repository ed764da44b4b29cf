"""A candidate: a model and the evaluator that trains it. One space covers what varies in both."""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_map_only

from nasflow.config.search import Target, TrainingConfig
from nasflow.errors import ConfigError, SharedLayerError
from nasflow.evaluator.data_source import fingerprint, load_data
from nasflow.evaluator.lazy_layers import bare_trainer, complete, first_batch
from nasflow.evaluator.make import make_evaluator
from nasflow.evaluator.searched_values import close_searched
from nasflow.load_target import load_target
from nasflow.space.lazy_layers import count_parameters, lazy_layers
from nasflow.space.pick import Pick
from nasflow.space.shared_layers import Owners
from nasflow.space.space import Space

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Candidate:
    """What an architecture stands for: the model it builds and the training config it closes."""

    model: nn.Module
    config: TrainingConfig

    @property
    def epochs(self) -> int:
        """How many epochs it trains, if it is not stopped early."""
        return int(self.config.epochs)  # type: ignore[arg-type]

    @property
    def parameters(self) -> int:
        """How many numbers the model learns or holds as parameters. Lazy layers have none before their first input."""
        return count_parameters(self.model)


def candidate_space(space: Target, evaluator: TrainingConfig, base_dir: Path) -> Space:
    """The space of a search: `build(architecture)` gives a Candidate. Model labels come first, then the evaluator's.

    What it builds to be looked at has its lazy layers made, by a batch of the data. Where they can't be, that is
    logged: the trial will fail by it.

    Raises:
        ConfigError: the space's target can't be imported or called. The space itself raises a SharedLayerError when it
            has built two models with a layer in common that training would change.
    """
    build = load_target(space.target, base_dir)
    if not callable(build):
        raise ConfigError(f"space.target: {space.target} is not callable; it should be build(pick, **params)")

    owners = Owners()

    def program(pick: Pick) -> Candidate:
        model: Any = build(pick, **space.params)
        if not isinstance(model, nn.Module):
            raise ConfigError(
                f"space.target: {space.target} gave a {type(model).__name__}; it should give an nn.Module"
            )
        if shared := owners.claim(model, object()):
            raise SharedLayerError(
                f"space.target: {space.target} makes {shared.what} outside of build(pick), so all trials would train "
                "the same one; make it within build(pick), or freeze it by requires_grad_(False) and eval()"
            )
        return Candidate(model, close_searched(evaluator, pick))

    batches: dict[str, Any] = {}

    def completed(candidate: Candidate) -> bool:
        if not lazy_layers(candidate.model):
            return True
        device = torch.get_default_device()
        try:
            data = candidate.config.data
            if (name := fingerprint(data)) not in batches:
                with torch.device("cpu"), torch.random.fork_rng(devices=[]):
                    batches[name] = first_batch(load_data(data, base_dir))
            complete_candidate(candidate, batches[name], base_dir)
        except Exception as error:  # its job will find and tell it
            if device.type != "meta":
                logger.warning("space '%s': sizes of lazy layers are not known here: %s", space.target, error)
            return False
        return True

    return Space(program, space.target, completed)


def complete_candidate(candidate: Candidate, batch: Any, base_dir: Path) -> None:
    """Make the lazy layers of a candidate's model, which is not trained afterwards, on the device where it lies.

    Raises:
        ConfigError: `batch` does not reach one of them; names it.
        Exception: what a training step of the user's raises.
    """
    device = torch.get_default_device()

    def moved(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(device, torch.float32 if tensor.is_floating_point() else None)  # as models are built

    module = make_evaluator(candidate.config, base_dir).module(candidate.model)
    module.trainer = bare_trainer()
    module.setup("fit")
    complete(module, tree_map_only(torch.Tensor, moved, batch))
