"""`kind: function` and `kind: command`: code of the user that trains a trial by itself, checked before that."""

import inspect
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from nasflow.config.search import CommandConfig, FunctionConfig, ProgramConfig
from nasflow.errors import ConfigError
from nasflow.load_target import check_params, load_target

GIVEN = ("model", "report", "checkpoint", "seed")
"""What a function gets by name, if its signature has that name."""
_UNCALLED: dict[str, Callable[[Any], bool]] = {
    "async": inspect.iscoroutinefunction,
    "a generator": inspect.isgeneratorfunction,
    "an async generator": inspect.isasyncgenfunction,
}


def load_function(config: FunctionConfig, base_dir: Path) -> Callable[..., Any]:
    """Return the function of a config.

    Raises:
        ConfigError: it can't be imported, is no function, takes no `report`, or does not take its params.
    """
    function: Any = load_target(config.target, base_dir)
    key = "evaluator.target"
    if not callable(function):
        raise ConfigError(f"{key}: {config.target} is not callable; it should be a function that trains a model")
    for kind, is_kind in _UNCALLED.items():
        if is_kind(function):
            raise ConfigError(
                f"{key}: {config.target} is {kind}, whose body a call does not run; write a plain function"
            )
    names = inspect.signature(function).parameters
    if "report" not in names:
        raise ConfigError(f"{key}: {config.target} takes no argument 'report', by which it ends an epoch; add it")
    if taken := [name for name in config.params if name in GIVEN]:
        raise ConfigError(f"evaluator.params: '{taken[0]}' is what nasflow gives to {config.target}; name it otherwise")
    check_params(key, config.target, function, **{name: None for name in GIVEN if name in names}, **config.params)
    return cast(Callable[..., Any], function)


def find_program(config: CommandConfig, base_dir: Path) -> list[str]:
    """Return the command with the path of its program, which is looked for in `program_path`, or from `base_dir`.

    Raises:
        ConfigError: there is none that can be run.
    """
    program, *arguments = config.command
    here = str(base_dir / program) if os.sep in program else program
    found = shutil.which(here, path=program_path())
    if found is None:
        raise ConfigError(
            f"evaluator.command: there is no program '{program}' that can be run here; install it, or name its path"
        )
    return [found, *arguments]


def program_path() -> str:
    """Return PATH, with the folder of this Python before it: `python` is this one, and `nasflow` that beside it."""
    return os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])


def check_program(config: ProgramConfig, base_dir: Path, runs_here: bool) -> None:
    """Raise ConfigError for a mistake that shows before a trial runs; a program elsewhere can't be looked for."""
    if isinstance(config, FunctionConfig):
        load_function(config, base_dir)
    elif isinstance(config, CommandConfig) and runs_here:
        find_program(config, base_dir)
