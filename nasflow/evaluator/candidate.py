"""A candidate: a model and the evaluator that trains it. One space covers what varies in both."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from nasflow.config import Target, TrainingConfig
from nasflow.errors import ConfigError, SharedLayerError
from nasflow.evaluator.searched import close_searched
from nasflow.space.owners import Owners
from nasflow.space.pick import Pick
from nasflow.space.space import Space
from nasflow.target import load_target


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
        """How many numbers the model learns or holds as parameters."""
        return sum(parameter.numel() for parameter in self.model.parameters())


def candidate_space(space: Target, evaluator: TrainingConfig, base_dir: Path) -> Space:
    """The space of a search: `build(architecture)` gives a Candidate. Model labels come first, then the evaluator's.

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

    return Space(program, name=space.target)
