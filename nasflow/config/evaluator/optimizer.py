"""The `evaluator.optimizer` section."""

from typing import Annotated, Any, Literal

from pydantic import Field, Tag, model_validator

from nasflow.config.values import OptionalBool, OptionalFloat, Options, SearchedFloat, SearchedTags, Section

OptimizerName = Literal["sgd", "adam", "adamw", "rmsprop", "adagrad", "nadam", "radam", "adamax"]
"""torch's optimizers, by their names in lower case."""


class OptimizerConfig(Section):
    """A torch optimizer by name, or any by import path; every number may be searched.

    Keys left out keep torch's default.
    """

    name: Annotated[
        Annotated[OptimizerName, Field(title="Value"), Tag("value")]
        | Annotated[Options[OptimizerName], Field(title="Options"), Tag("pick")],
        SearchedTags,
    ] = Field(default="adamw", description="torch's optimizer")
    lr: SearchedFloat = Field(default=1e-3, title="Learning rate", description="the first one, before any schedule")
    weight_decay: OptionalFloat = Field(default=None, description="decoupled in adamw, else an L2 penalty")
    momentum: OptionalFloat = Field(default=None, description="of sgd and rmsprop")
    betas: tuple[SearchedFloat, SearchedFloat] | None = Field(
        default=None, description="decay of the running mean and of the running square, in the Adam family"
    )
    eps: OptionalFloat = Field(default=None, title="Epsilon", description="added to denominators")
    nesterov: OptionalBool = Field(default=None, description="Nesterov momentum, in sgd")
    no_decay: list[Literal["norm", "bias"]] = Field(
        default=[], description="which parameters have no weight decay: those of norms, and biases"
    )
    target: str | None = Field(
        default=None,
        description="another optimizer class, as package.module:Name or file.py:Name; none: by name",
    )
    params: dict[str, Any] = Field(default={}, description="keyword arguments of the class beside the keys above")

    @model_validator(mode="after")
    def _name_or_target(self) -> "OptimizerConfig":
        if self.target is not None and self.name != "adamw":  # the default, which a record of a config names too
            raise ValueError("give 'name' or 'target', not both")
        return self
