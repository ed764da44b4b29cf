"""The Azure ML service, as the tests of this folder make it."""

import json
import os
import sys
from pathlib import Path

from nasflow.config.services.hosted.azureml import AzuremlServiceConfig
from nasflow.training_service.cluster.runs import name_prefix
from nasflow.training_service.hosted.azureml import AzuremlService
from tests.hosted.azureml.emulator import SUBSCRIPTION, WORKSPACE, Azureml

SCRIPTED = "nasflow.testing.scripted_job:run_job_file"
URL = "NASFLOW_TEST_AZUREML"
TOKEN = "eyJ0/with+signs=="


def make(root: Path, slots: int = 1, **options) -> AzuremlService:
    known = {"url": os.environ[URL], "subscription_id": SUBSCRIPTION, "resource_group": "lab", "image": "i:1"}
    known |= {"workspace_name": "vision", "compute_target": "cpu-cluster", "token": {"env": "AZURE_TOKEN"}}
    known |= {"python": sys.executable, "poll_seconds": 0.3, "memory_gb": 1, "max_jobs": slots}
    return AzuremlService(AzuremlServiceConfig(**(known | options)), root, runner=SCRIPTED)


def submissions(azure: Azureml, root: Path) -> list[dict]:
    """What was submitted for a root, the last submission last."""
    prefix = f"{WORKSPACE}/jobs/{name_prefix(root.resolve())}"
    found = [each.body for each in azure.requests if each.method == "PUT" and each.path.startswith(prefix)]
    return [json.loads(body) for body in found]
