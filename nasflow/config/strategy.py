"""The `strategy` and `pruner` sections of the search config: what is tried, and what is stopped early."""

from typing import Annotated, Any, Literal

from pydantic import Field, PositiveInt

from nasflow.config.evaluator.target import Target
from nasflow.config.values import Section


class RandomConfig(Section):
    """Sample uniformly at every choice; architectures already seen are avoided while new ones can be found."""

    kind: Literal["random"] = Field(default="random", description="random search")


class GridConfig(Section):
    """Every architecture in turn; a searched float range is cut into `float_steps` values."""

    kind: Literal["grid"] = Field(default="grid", description="grid search")
    float_steps: PositiveInt = Field(default=5, description="values that a searched float range is cut into")


class EvolutionConfig(Section):
    """Regularized (aging) evolution, Real et al. 2019."""

    kind: Literal["evolution"] = Field(default="evolution", description="regularized evolution")
    population: PositiveInt = Field(default=32, description="trials that live: the newest")
    tournament: PositiveInt = Field(default=8, description="trials drawn from the population; the best is the parent")
    crossover: float = Field(default=0.0, ge=0, le=1, description="share of children with two parents")


class OptunaConfig(Section):
    """An Optuna sampler by name; `params` go to its constructor."""

    kind: Literal["tpe", "nsga2", "gp", "cmaes", "qmc"] = Field(description="Optuna's sampler")
    params: dict[str, Any] = Field(default={}, description="keyword arguments of the sampler")


class HyperbandConfig(Section):
    """Asynchronous successive halving (Li et al. 2020), in one bracket or, as in Hyperband, in several.

    Trials end after few epochs, and the best 1 / `reduction_factor` of them go on from their checkpoints. BOHB (Falkner
    et al. 2018) is Hyperband that learns from results which architectures to begin with.
    """

    kind: Literal["asha", "hyperband", "bohb"] = Field(
        description="one bracket, or one for each number of first epochs, without or with a model of what is good"
    )
    reduction_factor: int = Field(default=3, ge=2, description="one of so many goes on")
    min_epochs: PositiveInt = Field(default=1, description="epochs after which trials are compared first")

    def rungs(self, epochs: int) -> list[int]:
        """Return the epochs after which trials of so many epochs are compared, and the last one."""
        found = []
        rung = self.min_epochs
        while rung < epochs:
            found.append(rung)
            rung *= self.reduction_factor
        return [*found, epochs]


class CustomStrategyConfig(Section):
    """A user's `nasflow.strategy.base.Strategy` subclass."""

    kind: Literal["custom"] = Field(default="custom", description="a Strategy of yours")
    target: str = Field(description="package.module:Name, or file.py:Name relative to the config")
    params: dict[str, Any] = Field(default={}, description="keyword arguments of the class")


StrategyConfig = Annotated[
    RandomConfig | GridConfig | EvolutionConfig | HyperbandConfig | OptunaConfig | CustomStrategyConfig,
    Field(discriminator="kind"),
]
"""The section of any strategy, chosen by `kind`."""


class MedianPrunerConfig(Section):
    """Stop a member if its best value so far is worse than the median of the others' values in the same epoch."""

    kind: Literal["median"] = Field(default="median", description="stop what is worse than the median")
    warmup_epochs: int = Field(default=1, ge=0, description="epochs before anyone is judged")
    every_epochs: PositiveInt = Field(default=1, description="epochs between two judgements")
    min_others: PositiveInt = Field(default=4, description="others that must have come as far")


class HalvingPrunerConfig(Section):
    """Asynchronous successive halving: the best 1 / `reduction_factor` go on at `min_epochs`, and at each multiple."""

    kind: Literal["halving"] = Field(default="halving", description="asynchronous successive halving")
    reduction_factor: int = Field(default=3, ge=2, description="one of so many goes on")
    min_epochs: PositiveInt = Field(default=1, description="epochs before the first judgement")


class CustomPrunerConfig(Target):
    """A user's `nasflow.training.schedule.pruners.Pruner` subclass."""

    kind: Literal["custom"] = Field(default="custom", description="a Pruner of yours")


PrunerConfig = Annotated[
    MedianPrunerConfig | HalvingPrunerConfig | CustomPrunerConfig, Field(discriminator="kind", title="Pruner")
]
"""The section of any pruner, chosen by `kind`."""
