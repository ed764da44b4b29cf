"""The server that nasflow itself lets Prefect use, where the user names none."""

import os
import sys
from dataclasses import dataclass

URL = "PREFECT_API_URL"


@dataclass(frozen=True)
class InUse:
    """A server of nasflow's. It ends with this program, or is `kept` for later ones (kept_servers.py)."""

    url: str
    kept: bool


_servers: list[InUse] = []


def server_in_use() -> InUse | None:
    """Return the server of nasflow's that Prefect uses in this process; None if it uses one that the user names."""
    return _servers[-1] if _servers else None


def use_server(url: str, kept: bool) -> None:
    """Let Prefect use a server's API at `url` in this process, from now on."""
    os.environ[URL] = url
    if "prefect.context" in sys.modules:
        from prefect.context import refresh_global_settings_context  # noqa: PLC0415 - slow

        refresh_global_settings_context()
    _servers.append(InUse(url, kept))
