"""The environment variables that jobs inherit from the process that starts them."""

import os
import re
from collections.abc import Collection

OF_CONTROLLERS = re.compile(r"PREFECT_.*|PG\w*PASSWORD|NASFLOW_STORE")
"""Variables of the controller: jobs need no Prefect and no study, so they don't inherit its passwords."""

EXPLICIT = (
    *("NASFLOW_STORE", "PGPASSWORD", "PGSSLPASSWORD", "PREFECT_API_AUTH_STRING", "PREFECT_API_KEY"),
    *("PREFECT_API_DATABASE_CONNECTION_URL", "PREFECT_API_DATABASE_PASSWORD", "PREFECT_CLIENT_CUSTOM_HEADERS"),
    *("PREFECT_SERVER_API_AUTH_STRING", "PREFECT_SERVER_DATABASE_CONNECTION_URL", "PREFECT_SERVER_DATABASE_PASSWORD"),
)
"""Those of them with secrets, for programs that can only remove variables by name."""


def inherited(withheld: Collection[str] = (), pass_env: Collection[str] = ()) -> dict[str, str]:
    """Return this process's environment variables without the controller's secrets.

    Args:
        withheld: further variables with secrets.
        pass_env: variables that jobs need nevertheless.
    """
    return {
        name: value
        for name, value in os.environ.items()
        if name in pass_env or not (name in withheld or OF_CONTROLLERS.fullmatch(name))
    }
