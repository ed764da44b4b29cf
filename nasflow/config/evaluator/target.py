"""A user's object by import path."""

from typing import Any

from pydantic import Field

from nasflow.config.values import Section


class Target(Section):
    """A user's object by import path, called with `params`."""

    target: str = Field(description="package.module:Name, or file.py:Name relative to the config")
    params: dict[str, Any] = Field(default={}, description="keyword arguments")
