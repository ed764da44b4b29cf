"""Nodes that share no folder with the controller keep the contract by an object store on a real S3 server."""

import threading
from contextlib import suppress

import psutil
import pytest

from nasflow.testing.training_service import TrainingServiceContract, mentions, running
from tests.training_service.cluster import nodes
from tests.training_service.cluster.s3 import S3

pytestmark = pytest.mark.long


@pytest.fixture(scope="session")
def s3():
    server = S3()
    yield server
    server.close()


@pytest.fixture(autouse=True)
def cluster(s3, tmp_path, monkeypatch):
    code = tmp_path / "code"
    code.mkdir()
    monkeypatch.chdir(code)  # base_dir of scripted jobs
    folder = tmp_path / "cluster"
    monkeypatch.setenv(nodes.SETTINGS, nodes.settings(folder, nodes.on_nodes(s3.storage())))
    return folder


class TestObjectStore(TrainingServiceContract):
    factory = f"{nodes.__file__}:make"

    @pytest.fixture(autouse=True)
    def at(self, cluster, s3):
        self.cluster, self.released, ended = cluster, set(), threading.Event()
        thread = threading.Thread(target=self.release_everywhere, args=[ended])
        thread.start()
        yield
        ended.set()
        thread.join()
        assert s3.objects() == []
        assert list(cluster.glob("nasflow-*/run-*")) == []

    def release(self, root, name):
        """Nodes have roots of their own, also those that come later."""
        self.released.add(name)

    def release_everywhere(self, ended):
        while not ended.wait(0.05):
            for job in self.cluster.glob("nasflow-*/run-*/jobs/*"):
                for name in list(self.released):
                    with suppress(OSError):
                        (job.parents[1] / name).touch()

    def lose(self, service, handle):
        """The cluster's own process of it, whose death ends the program on the node."""
        [note] = self.cluster.glob(f"*-{handle.job_id}-*.pid")
        nodes.processes_of(note)[0].kill()

    def strays(self, root):
        """Nodes have roots of their own."""
        places = (str(root), str(self.cluster))
        return {p.pid for p in psutil.process_iter() if any(mentions(p, place) for place in places) and running(p)}
