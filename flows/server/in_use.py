"""The server that nasflow itself lets Prefect use, where the user names none."""

import os
import sys
from dataclasses import dataclass
from urllib.parse import urlsplit

from nasflow.system.process_id import ProcessId

URL = "PREFECT_API_URL"
_UI_URL = "PREFECT_UI_URL"


@dataclass(frozen=True)
class InUse:
    """A server of nasflow's. It ends with this program, or is `kept` for later ones (kept_servers.py)."""

    url: str
    kept: bool
    process: ProcessId | None

    @property
    def port(self) -> int:
        """Its port on this machine."""
        return urlsplit(self.url).port or 0

    def has_ended(self) -> bool:
        """Whether its process runs no more."""
        return self.process is None or not self.process.alive()


_servers: list[InUse] = []


def server_in_use() -> InUse | None:
    """Return the server of nasflow's that Prefect uses in this process; None if it uses one that the user names."""
    return _servers[-1] if _servers else None


def use_server(url: str, kept: bool, process: ProcessId | None) -> None:
    """Let Prefect use a server's API at `url` in this process, from now on."""
    os.environ[URL] = url
    if not kept:
        os.environ.setdefault(_UI_URL, "")  # it has no UI, so Prefect's log should not name a page of it
    _read_settings_again()
    _servers.append(InUse(url, kept, process))


def stop_using_server() -> None:
    """Let Prefect use nasflow's server no more in this process."""
    _servers.pop()
    os.environ.pop(URL, None)
    _read_settings_again()


def _read_settings_again() -> None:
    if "prefect.context" in sys.modules:
        from prefect.context import refresh_global_settings_context  # noqa: PLC0415 - slow

        refresh_global_settings_context()
