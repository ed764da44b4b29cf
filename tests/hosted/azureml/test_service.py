"""The Azure ML service keeps the contract on an emulator of the service, and submits what it should."""

import sys

import pytest

from nasflow.errors import ServiceError
from nasflow.testing.training_service import (
    TrainingServiceContract,
    epochs,
    finish,
    script,
)
from nasflow.training_service.cluster.runs import name_prefix
from tests.handful import handful
from tests.hosted import promises
from tests.hosted.azureml import service as making
from tests.hosted.azureml.emulator import WORKSPACE
from tests.hosted.azureml.service import make, submissions


@handful
@pytest.mark.long
class TestAzuremlService(TrainingServiceContract):
    """The rest: TestOpenpaiService, another hosted service, and TestSharedFolder."""

    factory = f"{making.__file__}:make"

    @pytest.fixture(autouse=True)
    def cluster(self, azure):
        self.azure = azure

    def lose(self, service, handle):
        """Its node fails."""
        self.azure.job(handle.job_id).container.kill()


def test_what_is_submitted(root, azure, monkeypatch):
    extra = {"identity": {"identityType": "Managed"}, "tags": {"team": "a"}, "resources": {"shmSize": "2g"}}
    service = make(root, cpus_per_job=2, instance_type="Standard_NC6", experiment_name="cells", extra=extra)
    promises.jobs_have_their_environment(service, monkeypatch, ["AZURE_TOKEN"])
    (job,) = submissions(azure, root)
    properties = job["properties"]
    assert (properties["jobType"], properties["experimentName"]) == ("Command", "cells")
    assert properties["computeId"] == f"{WORKSPACE}/computes/cpu-cluster"
    assert properties["identity"] == extra["identity"]
    assert properties["resources"] == {"instanceType": "Standard_NC6", "shmSize": "2g"}
    assert properties["tags"] == {name_prefix(root.resolve())[:-1]: "job", "team": "a"}
    place = properties["environmentId"].removeprefix(f"{WORKSPACE}/environments/")
    assert azure.environments[place]["image"] == "i:1"


@pytest.mark.parametrize(
    ("environment", "identifier"),
    [
        ("torch:2", f"{WORKSPACE}/environments/torch/versions/2"),
        ("azureml://registries/azureml/environments/t/versions/1",) * 2,
    ],
)
def test_an_environment_in_place_of_an_image(root, azure, environment, identifier):
    service = make(root, image=None, environment=environment)
    service.validate()
    assert finish(service, service.submit(script("job"))).exit_code == 0
    assert submissions(azure, root)[0]["properties"]["environmentId"] == identifier


def test_files_by_an_object_store(root, azure, tmp_path):
    """Jobs need not see `work_dir`."""
    storage = {"url": f"file://{tmp_path}/store", "python": sys.executable, "poll_seconds": 0.2, "look_seconds": 0.3}
    service = make(root, storage=storage)
    service.validate()
    handle = service.submit(script("job", ["epoch", 1], ["epoch", 2]))
    assert finish(service, handle).exit_code == 0
    assert [number for number, _ in epochs(service, handle)] == [1, 2]
    assert str(root) not in submissions(azure, root)[0]["properties"]["command"]


def test_a_storage_with_secrets_that_jobs_would_show_is_refused(root):
    storage = {"url": "az://container", "options": {"account_name": "lab", "account_key": "hush"}}
    promises.a_storage_with_secrets_that_jobs_would_show_is_refused(make, root, storage)


def test_a_path_that_azure_would_read_as_a_reference_is_refused(tmp_path, azure):
    with pytest.raises(ServiceError, match=r"Azure ML can't run commands with '\$\{\{' in a path"):
        make(tmp_path / "${{root}}").submit(script("job"))
