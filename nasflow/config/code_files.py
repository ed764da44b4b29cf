"""Whether a config, or a part of it, names code by a file, which is relative to `base_dir`."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from nasflow.config.evaluator.program import CommandConfig
from nasflow.load_target import target_file


def names_files(value: Any) -> bool:
    """Whether a section in `value`, such as a config, has a `file.py:Name` target, or is a command, which may."""
    return any(isinstance(section, CommandConfig) or _is_file(section) for section in _sections(value))


def _is_file(section: BaseModel) -> bool:
    target = getattr(section, "target", None)
    return isinstance(target, str) and target_file(target, Path()) is not None


def _sections(value: Any) -> Iterator[BaseModel]:
    if isinstance(value, BaseModel):
        yield value
        for name in type(value).model_fields:
            yield from _sections(getattr(value, name))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _sections(item)
