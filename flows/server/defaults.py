"""What a server gets where the user says nothing: settings of Prefect, and a folder."""

from pathlib import Path

from nasflow.system.caches import cache_dir

PREFECT_DEFAULTS = {
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "DO_NOT_TRACK": "1",
    "PREFECT_SERVER_API_MAX_PARAMETER_SIZE": "0",  # no limit: a config has its own, which is larger than Prefect's
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "120",  # the first start creates its database
}
"""Environment variables."""


def servers_dir() -> Path:
    """Return the folder with the records and logs of kept servers."""
    return cache_dir() / "servers"
