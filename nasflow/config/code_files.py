"""The user's code that a config, or a part of it, names, such as by a file, which is relative to `base_dir`."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from nasflow.clean_text import one_line
from nasflow.config.evaluator.program import CommandConfig
from nasflow.config.merge import MergeConfig
from nasflow.errors import ConfigError
from nasflow.load_target import target_file


def names_files(value: Any) -> bool:
    """Whether a section in `value`, such as a config, has a `file.py:Name` target, or is a command, which may."""
    if any(isinstance(section, CommandConfig) for _, section in _sections(value)):
        return True
    return any(target_file(target, Path()) is not None for target in targets_of(value).values())


def targets_of(value: Any, key: str = "") -> dict[str, str]:
    """Return the targets of the sections in `value`, such as a config, by their keys, which begin with `key`."""
    found = {}
    for place, section in _sections(value, key):
        target = getattr(section, "target", None)
        if isinstance(target, str):
            found[f"{place}.target"] = target
        if isinstance(section, MergeConfig):
            found |= {f"{place}.passes.{number}": target for number, target in enumerate(section.passes)}
    return found


def refuse_main(targets: Mapping[str, str]) -> None:
    """Raise ConfigError if one of the targets by key is in `__main__`, which is another module in other processes."""
    for key, target in targets.items():
        module, _, name = target.rpartition(":")
        if module == "__main__":
            raise ConfigError(
                f"{key}: jobs are other processes, which have another __main__; write {one_line(name)} into a file (in "
                f"a notebook: %%writefile own.py) and name that: own.py:{one_line(name)}"
            )


def _sections(value: Any, key: str = "") -> Iterator[tuple[str, BaseModel]]:
    if isinstance(value, BaseModel):
        yield key, value
        for name in type(value).model_fields:
            yield from _sections(getattr(value, name), f"{key}.{name}" if key else name)
    elif isinstance(value, list | tuple):
        for number, item in enumerate(value):
            yield from _sections(item, f"{key}.{number}")
