"""Import a user's object by its path: `package.module:Name`, or `file.py:Name` relative to the config."""

import hashlib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from nasflow.clean_text import one_line
from nasflow.errors import ConfigError
from nasflow.system.gc_control import uncollected

_DEEPEST = 100  # dots in the name of a module; Python imports each package before it, by recursion
_added: list[str] = []  # folders that are on sys.path for targets


def import_path_without_targets() -> list[str]:
    """Return `sys.path` without the folders that are on it for targets.

    Another process that loads a target puts its folder last, as this one did. In PYTHONPATH it would come before
    installed packages, and a user's `yaml.py` would hide the library.
    """
    return [entry for entry in sys.path if entry not in _added]


def target_file(target: str, base_dir: Path) -> Path | None:
    """Return the absolute path of the file of a `file.py:Name` target, or None for a `package.module:Name` one."""
    place, _, _ = target.rpartition(":")
    return (base_dir / place).resolve() if place.endswith(".py") else None


def load_target(target: str, base_dir: Path) -> Any:
    """Return the object that `target` names.

    Raises:
        ConfigError: the target is malformed, or its file, module or name does not exist.
    """
    place, _, name = target.rpartition(":")
    shown = one_line(target)
    if not place or not name:
        raise ConfigError(f"target '{shown}' should read 'package.module:Name' or 'file.py:Name'")
    file = target_file(target, base_dir)
    with uncollected():  # nearly all that an import makes stays
        module = _import_file(file, shown) if file else _import_module(place, shown, base_dir)
    try:
        return getattr(module, name)
    except AttributeError:
        names = ", ".join(sorted(n for n in vars(module) if not n.startswith("_"))[:12])
        lacking = f"'{one_line(place)}' has no '{one_line(name)}'"
        raise ConfigError(f"target '{shown}': {lacking}; it has {names or 'nothing public'}") from None


def check_params(key: str, target: str, function: Callable[..., Any], /, *args: Any, **params: Any) -> None:
    """Raise ConfigError, naming the config's `key`, unless `target`'s `function` accepts these arguments."""
    try:
        inspect.signature(function).bind(*args, **params)
    except TypeError as error:
        raise ConfigError(f"{key}: {target} does not take these params: {error}") from None
    except ValueError:
        return  # written in C, it may have no signature; its call will tell


def _import_module(place: str, target: str, base_dir: Path) -> ModuleType:
    if place.count(".") > _DEEPEST:
        raise ConfigError(f"target '{target}': the name of a module has at most {_DEEPEST} dots")
    _make_importable(base_dir)
    try:
        return importlib.import_module(place)
    except ModuleNotFoundError as error:
        if error.name is None or not (place == error.name or place.startswith(f"{error.name}.")):
            raise  # the module is there; something it imports is missing
        raise ConfigError(
            f"target '{target}': there is no module '{one_line(error.name)}' (looked beside the config too)"
        ) from None


def _import_file(file: Path, target: str) -> ModuleType:
    try:
        is_there = file.is_file()
    except OSError as error:
        raise ConfigError(f"target '{target}': its file can't be read: {error.strerror}") from None
    if not is_there:
        raise ConfigError(f"target '{target}': there is no file {one_line(str(file))}")
    digest = hashlib.blake2b(str(file).encode(), digest_size=4).hexdigest()
    name = f"nasflow_target_{file.stem}_{digest}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ConfigError(f"target '{target}': {file} can't be imported as Python")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    _make_importable(file.parent)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _make_importable(folder: Path) -> None:
    """Let a target's module import those beside it; installed packages come first."""
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
        _added.append(str(folder))
