"""Prefect's `Secret` blocks that configs name. Their values come from the environment or from a hidden prompt."""

import getpass
import os
import re
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from nasflow.config.search import SearchConfig
from nasflow.errors import UserError

from .server_objects import Done, Made

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient

_TYPE = "secret"  # Prefect's name of the block type
_NAME = r"[a-z0-9-]+"


def secret_names(given: Sequence[str], config: SearchConfig | None) -> list[str]:
    """Return the names of the blocks without duplicates: `given` in Prefect's spelling, and those in the config.

    Raises:
        UserError: a name is not valid for a block.
    """
    named = [] if config is None else list(_named(config.model_dump()))
    names = list(dict.fromkeys([*(name.lower().replace("_", "-") for name in given), *named]))
    if wrong := next((name for name in names if not re.fullmatch(_NAME, name)), None):
        raise UserError(f"secret '{wrong}': names of Prefect's blocks consist of letters, digits and dashes")
    return names


def values_wanted(client: "SyncPrefectClient", names: Sequence[str]) -> dict[str, str | None]:
    """Return the value to store in each block; None to keep its present value.

    Raises:
        UserError: there is no such block, and no value is given.
    """
    return {name: os.environ.get(_variable(name)) or (None if _value(client, name) else _ask(name)) for name in names}


def ensure_secret(client: "SyncPrefectClient", name: str, value: str | None) -> Made:
    """Create or update a block with this value. None keeps the present value."""
    from prefect.blocks.system import Secret  # noqa: PLC0415 - slow
    from pydantic import SecretStr  # noqa: PLC0415

    present = _value(client, name)
    note = f"in a config: {{prefect_block: {name}}}"
    if value is None or value == present:
        return Made("secret", name, Done.FOUND, note)
    block: Any = Secret(value=SecretStr(value))
    block.save(name, overwrite=True, _sync=True)
    return Made("secret", name, Done.CREATED if present is None else Done.CHANGED, note)


def _named(values: Any) -> Iterator[str]:
    """Yield the names of blocks anywhere in a config."""
    if isinstance(values, dict):
        if values.keys() == {"prefect_block"}:
            yield values["prefect_block"]
        else:
            for value in values.values():
                yield from _named(value)
    elif isinstance(values, list | tuple):
        for value in values:
            yield from _named(value)


def _variable(name: str) -> str:
    """Return the environment variable that may hold a secret's value."""
    return name.upper().replace("-", "_")


def _value(client: "SyncPrefectClient", name: str) -> str | None:
    """Return the value of a block; None if there is no such block."""
    from prefect.exceptions import ObjectNotFound  # noqa: PLC0415 - slow

    try:
        return str(client.read_block_document_by_name(name, _TYPE).data["value"])
    except ObjectNotFound:
        return None


def _ask(name: str) -> str:
    if not sys.stdin.isatty():
        raise UserError(
            f"secret '{name}': there is no terminal to ask for its value; "
            f"set the environment variable {_variable(name)}"
        )
    value = getpass.getpass(f"value of the secret '{name}' (it is not shown): ")
    if not value:
        raise UserError(f"secret '{name}': nothing was typed in; run 'nasflow setup' again")
    return value
