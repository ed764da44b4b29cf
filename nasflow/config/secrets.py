"""Secrets in a config: by reference, so that they appear in no database, log or command line."""

import os
from collections.abc import Callable
from typing import Annotated, Any

from pydantic import BaseModel, Field, SecretStr

from nasflow.config.values import Section
from nasflow.errors import ConfigError

_MASK = SecretStr("any").__str__()


class EnvironmentSecret(Section):
    """The value of an environment variable."""

    env: str = Field(min_length=1, title="Environment variable", description="its name, where the search runs")


class BlockSecret(Section):
    """The value of a Prefect `Secret` block."""

    prefect_block: str = Field(min_length=1, title="Prefect block", description="name of a Secret block")


Secret = Annotated[
    SecretStr | EnvironmentSecret | BlockSecret,
    Field(
        title="Secret", description="{env: NAME}, {prefect_block: NAME}, or the text itself, which is not put on record"
    ),
]

_block_readers: list[Callable[[str], str]] = []


def read_blocks_with(reader: Callable[[str], str]) -> None:
    """Set the function by which `reveal` reads a Prefect block, given its name. Only flows import Prefect."""
    _block_readers[:] = [reader]


def written_out(value: Any, key: str = "") -> list[str]:
    """Return the keys of a config, or of a part of it at `key`, that contain the text of a secret."""
    match value:
        case SecretStr():
            return [key]
        case BaseModel():
            items = [(name, getattr(value, name)) for name in type(value).model_fields]
        case list() | tuple():
            items = [(str(place), item) for place, item in enumerate(value)]
        case _:
            return []
    return [found for name, item in items for found in written_out(item, f"{key}.{name}" if key else name)]


def reveal(secret: Secret, key: str) -> str:
    """Return the text of a secret.

    Args:
        secret: the reference.
        key: its place in the config, for the error.

    Raises:
        ConfigError: there is no such variable or block, or its text was removed when the config was recorded.
    """
    match secret:
        case EnvironmentSecret(env=name):
            if name not in os.environ:
                raise ConfigError(f"{key}: the environment variable {name} is not set")
            return os.environ[name]
        case BlockSecret(prefect_block=name):
            if not _block_readers:
                raise ConfigError(f"{key}: Prefect's block '{name}' can't be read outside of a flow")
            return _block_readers[0](name)
        case SecretStr():
            text = secret.get_secret_value()
            if text == _MASK:
                raise ConfigError(
                    f"{key}: the text of a secret is not recorded; "
                    "write {env: NAME} or {prefect_block: NAME} instead"
                )
            return text
