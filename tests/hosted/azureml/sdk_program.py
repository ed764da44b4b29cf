"""Submits a command job by Azure's own SDK, and cancels it: a program for the environment that has the SDK.

Usage: sdk_program.py WORKSPACE JOB.json, with AZUREML_DEV_URL_MFE. WORKSPACE is its path in Azure Resource Manager.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

from azure.ai.ml import MLClient, command
from azure.ai.ml.entities import Environment
from azure.core.credentials import AccessToken


class Account:
    """A token that is given."""

    def __init__(self, token: str):
        self.token = token

    def get_token(self, *_: Any, **__: Any) -> Any:
        """Return the token, as of an account of azure-identity."""
        return AccessToken(self.token, int(time.time()) + 3600)


def main() -> None:
    """Run it, and print the job's state, and the names of the jobs with its tag."""
    _, _, subscription, _, group, _, _, _, workspace = sys.argv[1].split("/")
    job = json.loads(Path(sys.argv[2]).read_text())
    client = MLClient(Account(job.pop("token")), subscription, group, workspace)
    image = job.pop("image", None)
    if image is not None:
        job["environment"] = Environment(image=image)
    client.jobs.create_or_update(command(**job))
    state = client.jobs.get(job["name"]).status
    listed = [each.name for each in client.jobs.list(tag=next(iter(job["tags"])), list_view_type="All")]
    client.jobs.begin_cancel(job["name"])
    json.dump({"state": state, "listed": listed}, sys.stdout)


main()
