"""Nodes that share no folder with the controller keep the contract by an object store on a real S3 server."""

import pytest

from tests.object_store.far import FarNodesContract
from tests.object_store.s3 import on_nodes
from tests.training_service.cluster import nodes

pytestmark = pytest.mark.long


@pytest.fixture(autouse=True)
def scratch(s3, tmp_path, monkeypatch):
    code = tmp_path / "code"
    code.mkdir()
    monkeypatch.chdir(code)  # base_dir of scripted jobs
    folder = tmp_path / "cluster"
    monkeypatch.setenv(nodes.SETTINGS, nodes.settings(folder, on_nodes(s3.storage())))
    return folder


class TestObjectStore(FarNodesContract):
    factory = f"{nodes.__file__}:make"

    def lose(self, service, handle):
        """The cluster's own process of it, whose death ends the program on the node."""
        [note] = self.scratch.glob(f"*-{handle.job_id}-*.pid")
        nodes.processes_of(note)[0].kill()
