"""Secrets kept in Prefect's `Secret` blocks, for configs that name them: `{prefect_block: NAME}`."""

from typing import Any

from nasflow.config.secrets import read_blocks_with
from nasflow.errors import ConfigError

from .errors import clear_prefect_errors


def use_prefect_blocks() -> None:
    """Let configs read secrets from Prefect's blocks. Prefect is imported when the first one is read."""
    read_blocks_with(_read)


def _read(name: str) -> str:
    from prefect.blocks.system import Secret  # noqa: PLC0415 - slow

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
