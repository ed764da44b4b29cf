"""Secrets of jobs as Prefect's `Secret` blocks, because parameters of flow runs are shown."""

import hashlib
from collections.abc import Mapping
from typing import Any

from prefect.blocks.system import Secret
from prefect.client.orchestration import SyncPrefectClient
from prefect.exceptions import ObjectNotFound
from pydantic import SecretStr


class SecretBlocks:
    """The blocks of one root.

    Args:
        prefix: of their names: lowercase letters, digits and dashes.
    """

    def __init__(self, prefix: str):
        self._prefix = prefix
        self._saved: dict[str, str] = {}

    def save(self, values: Mapping[str, str]) -> dict[str, str]:
        """Save the values of environment variables, and return the names of the blocks by the variables."""
        for name, value in values.items():
            if self._saved.get(name) != value:
                block: Any = Secret(value=SecretStr(value))
                block.save(self._block(name), overwrite=True, _sync=True)
                self._saved[name] = value
        return {name: self._block(name) for name in values}

    def delete(self, client: SyncPrefectClient, names: list[str]) -> None:
        """Delete the blocks of these variables."""
        for name in names:
            try:
                document = client.read_block_document_by_name(self._block(name), "secret")
            except ObjectNotFound:
                continue
            client.delete_block_document(document.id)
        self._saved.clear()

    def _block(self, name: str) -> str:
        return f"{self._prefix}-{hashlib.sha256(name.encode()).hexdigest()[:10]}"
