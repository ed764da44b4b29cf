"""What tests of the contract do where jobs run on nodes that share no folder with the controller."""

import threading
from contextlib import suppress

import psutil
import pytest

from nasflow.testing.training_service import TrainingServiceContract, mentions, running


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
        """Nodes have roots of their own, also those that come later."""
        self.released.add(name)

    def await_ends(self):
        """Wait for what ends after the clean-up of a service."""

    def release_everywhere(self, ended):
        """Make the files that jobs wait for."""
        while not ended.wait(0.05):
            for job in self.scratch.glob("nasflow-*/run-*/jobs/*"):
                for name in list(self.released):
                    with suppress(OSError):
                        (job.parents[1] / name).touch()

    def strays(self, root):
        """Nodes have roots of their own."""
        places = (str(root), str(self.scratch))
        return {p.pid for p in psutil.process_iter() if any(mentions(p, place) for place in places) and running(p)}
