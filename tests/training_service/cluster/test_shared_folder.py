"""Nodes that see the shared folder under another path keep the contract."""

import json
from pathlib import Path

import pytest

from nasflow.config.services.storage import SharedFolderConfig
from nasflow.errors import ServiceError
from nasflow.testing.training_service import TrainingServiceContract, finish, numbers, script
from tests.training_service.cluster import nodes


@pytest.fixture(autouse=True)
def paths(tmp_path, monkeypatch):
    """The folder here, and the path of the nodes."""
    local, remote = tmp_path / "local", tmp_path / "remote"
    local.mkdir()
    remote.symlink_to(local)
    storage = {"local": str(local), "remote": str(remote)}
    monkeypatch.setenv(nodes.SETTINGS, nodes.settings(tmp_path / "cluster", storage))
    return local, remote


class TestSharedFolder(TrainingServiceContract):
    factory = f"{nodes.__file__}:make"

    @pytest.fixture
    def root(self, paths):
        return paths[0] / "runs" / "root"

    @pytest.fixture(autouse=True)
    def at(self, tmp_path):
        self.cluster = tmp_path / "cluster"

    def lose(self, service, handle):
        """The cluster's own process of it, whose death ends the program on the node."""
        [note] = self.cluster.glob(f"*-{handle.job_id}-*.pid")
        nodes.processes_of(note)[0].kill()


def test_nodes_are_given_their_path_only(paths):
    local, remote = paths
    service = nodes.make(local / "runs", 1)
    code = local / "code"
    code.mkdir()
    handle = service.submit(script("job", ["report", "report.json"]).model_copy(update={"base_dir": code}))
    assert finish(service, handle).exit_code == 0
    spec = json.loads((local / "runs/jobs/job/job.json").read_text())
    assert spec["base_dir"] == str(remote / "code")
    [record] = [service._records.new_run("job")]
    assert not [part for part in service._program(record) if str(local) in part]
    assert service._storage.log("job") == str(remote / "runs/jobs/job/job.log")
    assert numbers(service, "jobs/job/runs")
    service.cleanup()


def test_the_root_is_in_the_folder(paths, tmp_path):
    service = nodes.Nodes(tmp_path / "root", 1, tmp_path, SharedFolderConfig(local=str(paths[0]), remote="/data/nas"))
    with pytest.raises(ServiceError, match=r"local: the study.s folder \S+/root is not in \S+/local; set work_dir"):
        service.validate()


def test_paths_beside_the_folder_are_the_same_there(paths, monkeypatch):
    monkeypatch.syspath_prepend(str(paths[0] / "libraries"))
    storage = nodes.make(paths[0] / "root", 1)._storage
    entries = storage.import_path.split(":")
    assert str(paths[1] / "libraries") in entries
    assert str(Path(nodes.__file__).parents[3]) in entries
