"""A client of the Prefect server in use, and what is set before Prefect is imported."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from .errors import clear_prefect_errors

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient

_PREFECT_DEFAULTS = {
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "DO_NOT_TRACK": "1",
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "120",  # the first start makes its database
}


@contextmanager
def prefect_client() -> Iterator["SyncPrefectClient"]:
    """A client of the Prefect server in use. Raises PrefectApiError if it is not to be had."""
    from prefect.client.orchestration import get_client  # noqa: PLC0415 - slow

    with clear_prefect_errors(), get_client(sync_client=True) as client:
        client.raise_for_api_version_mismatch_once()
        yield client


def set_up_prefect(verbose: bool) -> None:
    """Before Prefect is imported: quiet, no analytics, patient with its own server. What the user set stays."""
    level = "INFO" if verbose else "CRITICAL"  # what fails is shown by nasflow itself, and logged in Prefect's API
    for name, value in {**_PREFECT_DEFAULTS, "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": level}.items():
        os.environ.setdefault(name, value)
