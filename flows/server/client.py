"""A client of the Prefect server in use, and the settings made before Prefect is imported."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from .defaults import PREFECT_DEFAULTS
from .errors import clear_prefect_errors
from .own_server import use_own_server

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient

_CONSOLE_LEVEL = "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL"
_THIS_MACHINE = ("127.0.0.1", "localhost")


@contextmanager
def prefect_client() -> Iterator["SyncPrefectClient"]:
    """Yield a client of the Prefect server in use. Raises PrefectApiError if the server is unavailable."""
    from prefect.client.orchestration import get_client  # noqa: PLC0415 - slow

    use_own_server()
    with clear_prefect_errors(), get_client(sync_client=True) as client:
        client.raise_for_api_version_mismatch_once()
        yield client


def prefect_shows_warnings() -> bool:
    """Whether Prefect shows nasflow's warnings, as it does unless `set_up_prefect` has told it not to."""
    return os.environ.get(_CONSOLE_LEVEL) != "CRITICAL"


def set_up_prefect(verbose: bool) -> None:
    """Set environment variables before Prefect is imported: little output, no analytics, a longer server start-up.

    Variables that are already set are kept. Requests to this machine go to no proxy, also from what is started.
    """
    level = "INFO" if verbose else "CRITICAL"  # nasflow shows errors itself, and Prefect's API has the log
    for name, value in {**PREFECT_DEFAULTS, _CONSOLE_LEVEL: level}.items():
        os.environ.setdefault(name, value)
    exceptions = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
    if exceptions != "*":
        hosts = dict.fromkeys([*filter(None, exceptions.split(",")), *_THIS_MACHINE])
        os.environ["no_proxy"] = os.environ["NO_PROXY"] = ",".join(hosts)  # programs differ in which they read
