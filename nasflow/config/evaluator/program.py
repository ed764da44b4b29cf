"""Evaluators that are programs of the user's."""

from typing import Any, ClassVar, Literal

from pydantic import Field

from nasflow.config.evaluator.training import EarlyStoppingConfig
from nasflow.config.values import SearchedInt, Section


class ProgramConfig(Section):
    """What `function` and `command` share: each trial trains in a process of its own, by code that is never merged."""

    data: ClassVar[None] = None
    """The program has its own."""
    test_data: ClassVar[None] = None
    stop_after: ClassVar[None] = None
    """A program goes on by itself."""
    members_per_trial: ClassVar[int] = 1
    parallel: ClassVar[None] = None
    """A program uses its devices as it likes."""

    params: dict[str, Any] = Field(default={}, description="what the program is given; any value may be searched")
    epochs: SearchedInt = Field(default=10, description="reports of every trial that is not stopped early")
    early_stopping: EarlyStoppingConfig | None = Field(
        default=None, description="stop trials that no longer improve; none: each trains to its end"
    )


class FunctionConfig(ProgramConfig):
    """A user's function that trains a model and reports every epoch.

    It is called with those of `model`, `report`, `checkpoint` and `seed` that its signature names, and with the params.
    """

    kind: Literal["function"] = Field(default="function", description="a function of yours that trains")
    target: str = Field(description="package.module:name, or file.py:name relative to the config")


class CommandConfig(ProgramConfig):
    """Any program; it finds architecture and params in a file, and writes its metrics into another."""

    kind: Literal["command"] = Field(default="command", description="any program that trains")
    command: list[str] = Field(min_length=1, description="program and arguments, started in the config's folder")
