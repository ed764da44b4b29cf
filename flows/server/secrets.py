"""Secrets kept in Prefect's `Secret` blocks, for configs that name them: `{prefect_block: NAME}`."""

import os
import sys
from typing import Any

from nasflow.config.secret.secret_url import SecretUrl
from nasflow.config.secret.secrets import SecretLocation, read_blocks_with, refuse_on_record
from nasflow.errors import ConfigError

from .errors import clear_prefect_errors
from .own_server import use_own_server

_DEFAULT_STORE = "sqlite:///nasflow.db"


def use_prefect_blocks() -> None:
    """Let configs read secrets from Prefect's blocks. Prefect is imported when the first one is read."""
    read_blocks_with(read_secret_block)


def refuse_recorded_secrets(value: Any, key: str = "") -> None:
    """Raise ConfigError if Prefect has recorded a secret of `value`, which is at `key`, with the current flow run.

    A config's JSON, which Prefect records, has no secrets in it, but a deployment's run may be given plain values, and
    so may a flow that is called with a dict.
    """
    if "prefect" not in sys.modules:
        return
    from prefect.context import FlowRunContext  # noqa: PLC0415 - slow

    context = FlowRunContext.get()
    if context is not None and context.flow_run is not None:
        refuse_on_record(value, context.flow_run.parameters, key)


def store_of_run(store: SecretLocation | None) -> SecretLocation:
    """Return the store that a flow works on, given its parameter: by default NASFLOW_STORE of the environment.

    Raises:
        ConfigError: Prefect has recorded a password in it.
    """
    use_prefect_blocks()
    if store is None:
        return SecretUrl(os.environ.get("NASFLOW_STORE", _DEFAULT_STORE))
    refuse_recorded_secrets(store, "store")
    return store


def read_secret_block(name: str) -> str:
    """Return the text of a `Secret` block. Raises ConfigError if there is none of this name."""
    from prefect.blocks.system import Secret  # noqa: PLC0415 - slow

    use_own_server()
    try:
        # _sync also works inside an event loop, as in a notebook.
        with clear_prefect_errors():
            block: Any = Secret.load(name, _sync=True)  # type: ignore[call-arg]
    except ValueError as error:
        raise ConfigError(
            f"Prefect has no Secret block '{name}'; create it in the UI under Blocks, or name one that "
            "'prefect block ls' lists"
        ) from error
    return str(block.value.get_secret_value())  # its get() reads '1.10' as the number 1.1
