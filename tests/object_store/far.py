"""What tests of the contract do where jobs run on nodes that share no folder with the controller."""

import json
import os
import threading
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from nasflow.testing.training_service import TrainingServiceContract, mentions, running
from tests.object_store.s3 import on_nodes

_STORAGE = "NASFLOW_TEST_STORAGE"


def far_disks(s3, tmp_path, monkeypatch):
    """Return the folder of the nodes' disks, for services with the section of `storage()` that this process makes."""
    (tmp_path / "code").mkdir()
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))  # of controllers that tests start
    monkeypatch.chdir(tmp_path / "code")  # base_dir of scripted jobs
    monkeypatch.setenv(_STORAGE, json.dumps(on_nodes(s3.storage()) | {"scratch": str(tmp_path / "scratch")}))
    return tmp_path / "scratch"


def storage():
    """Return the section, which is in the environment, so that other processes can make the same service."""
    return json.loads(os.environ[_STORAGE])


class FarNodesContract(TrainingServiceContract):
    """The contract on an object store. The fixture `s3` is its server, and `scratch` the nodes' own disks."""

    @pytest.fixture(autouse=True)
    def at(self, scratch, s3):
        """Nothing of a test is left, neither in the store nor on the nodes."""
        self.scratch, self.released, ended = scratch, set(), threading.Event()
        thread = threading.Thread(target=self.release_everywhere, args=[ended])
        thread.start()
        yield
        ended.set()
        thread.join()
        self.await_ends()
        assert s3.objects() == []
        assert list(scratch.glob("nasflow-*/run-*")) == []

    def release(self, root, name):
        """Each node has another root, also those that come later."""
        self.released.add(name)

    def await_ends(self):
        """Wait for what ends after the clean-up of a service."""

    def release_everywhere(self, ended):
        """Make the files that jobs wait for."""
        while not ended.wait(0.05):
            with suppress(OSError):  # a run's folder that is removed while it is listed; the next pass finds the others
                for job in self.scratch.glob("nasflow-*/run-*/jobs/*"):
                    for name in list(self.released):
                        (job.parents[1] / name).touch()

    def strays(self, root):
        """Each node has another root."""
        places = (str(root), str(self.scratch))
        return {p.pid for p in psutil.process_iter() if any(mentions(p, place) for place in places) and running(p)}
