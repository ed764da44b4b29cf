"""What the Azure ML service sends is what Azure's own SDK sends, which the same emulator understands."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from nasflow.config.services.hosted.azureml import AzuremlServiceConfig
from nasflow.testing.training_service import script, until
from nasflow.training_service.cluster.runs import name_prefix
from nasflow.training_service.hosted.azureml import AzuremlService
from tests.hosted.azureml.emulator import SUBSCRIPTION, WORKSPACE, Azureml
from tests.hosted.emulator import Request
from tests.own_environment import own_environment

pytestmark = pytest.mark.long
REQUIREMENTS = Path(__file__).with_name("sdk_requirements.txt")
PROGRAM = Path(__file__).with_name("sdk_program.py")
TOKEN = "t0ken"


def by_sdk(azure: Azureml, folder: Path, job: dict[str, Any]) -> dict[str, Any]:
    """Submit a job by the SDK, and return what its program printed."""
    file = folder / "job.json"
    file.write_text(json.dumps({**job, "token": TOKEN}))
    python = own_environment("Azure ML SDK", REQUIREMENTS) / "bin" / "python"
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "AZUREML_DEV_URL_MFE": azure.url}
    environment |= {"AZURE_CORE_COLLECT_TELEMETRY": "0", "AZUREML_DISABLE_TELEMETRY": "1"}
    done = subprocess.run(
        [python, PROGRAM, WORKSPACE, file], env=environment, cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def put(requests: list[Request], place: str) -> tuple[Request, dict[str, Any]]:
    """The only PUT below a place, and the properties that it has."""
    (request,) = [each for each in requests if each.method == "PUT" and each.path.startswith(f"{WORKSPACE}/{place}/")]
    return request, json.loads(request.body)["properties"]


@pytest.mark.parametrize("container", [{"image": "i:1"}, {"environment": "torch:2"}], ids=["image", "environment"])
def test_the_sdk_sends_the_same(tmp_path, container):
    with Azureml(TOKEN).running() as azure:
        assert isinstance(azure, Azureml)
        where = {"subscription_id": SUBSCRIPTION, "resource_group": "lab", "workspace_name": "vision"}
        what = {"compute_target": "cpu-cluster", "instance_type": "Standard_NC6", "experiment_name": "cells"}
        config = AzuremlServiceConfig(**where, **what, **container, url=azure.url, token=TOKEN, poll_seconds=0.3)
        azure.places = 0
        service = AzuremlService(config, tmp_path / "root")
        handle = service.submit(script("job"))
        ours, azure.requests = azure.requests, []
        name, tag = azure.name(azure.job("job")), name_prefix((tmp_path / "root").resolve())[:-1]
        _, sent = put(ours, "jobs")

        job = {"name": f"{name}-sdk", "display_name": name, "command": sent["command"], "tags": {tag: "job"}}
        job |= {"compute": "cpu-cluster", "instance_type": "Standard_NC6", "experiment_name": "cells"}
        job |= {"environment": "azureml:torch:2"} if "environment" in container else container
        assert by_sdk(azure, tmp_path, job) == {"state": "Queued", "listed": [f"{name}-sdk", name]}
        theirs, azure.requests = azure.requests, []
        service.cancel(handle)

        request, properties = put(theirs, "jobs")
        plain = {key: value for key, value in properties.items() if value not in ({}, False)}
        plain["resources"] = {key: value for key, value in plain["resources"].items() if value != {}}
        if "image" in container:  # whose version is a hash, of more than the image's name
            _, anonymous = put(theirs, "environments")
            _, mine = put(ours, "environments")
            assert {key: value for key, value in anonymous.items() if value is not False} == mine
            plain["environmentId"], _, version = plain["environmentId"].rpartition("/")
            sent["environmentId"], _, own = sent["environmentId"].rpartition("/")
            assert version.isalnum() and own.isalnum()
        assert plain == sent
        assert request.headers["authorization"] == f"Bearer {TOKEN}"
        listed = next(each for each in theirs if each.path == f"{WORKSPACE}/jobs")
        assert {**listed.query, "api-version": ""} == {"api-version": "", "tag": tag, "listViewType": "All"}
        cancelled = [each.path for each in theirs if each.method == "POST"]
        assert cancelled == [f"{WORKSPACE}/jobs/{name}-sdk/cancel"]
        assert until(lambda: azure.jobs[name].stopping, "cancelled job")
