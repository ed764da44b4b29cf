"""The SSH service keeps the contract on a real sshd, and its own promises on several."""

import json
import os
from pathlib import Path

import psutil
import pytest
from sshd import start_sshd

from nasflow.testing.training_service import TrainingServiceContract, mentions, numbers, running


@pytest.fixture
def host(tmp_path):
    with start_sshd(tmp_path / "host") as sshd:
        yield sshd


class TestSshService(TrainingServiceContract):
    factory = f"{Path(__file__).with_name('ssh_services.py')}:make"

    @pytest.fixture
    def root(self, tmp_path, host):
        (tmp_path / "code").mkdir()
        config = {"hosts": [host.config_host()], "known_hosts": str(host.known_hosts), "ssh_config": "/dev/null"}
        (tmp_path / "service.json").write_text(json.dumps(config))
        return tmp_path / "root"

    def release(self, root, name):
        (folder,) = (root.parent / "host/work/studies").iterdir()
        (folder / name).touch()

    def strays(self, root):
        places = (str(root), str(root.parent / "host/work"))
        others = (p for p in psutil.process_iter() if p.pid != os.getpid())
        return {p.pid for p in others if any(mentions(p, place) for place in places) and running(p)}

    def lose(self, service, handle):
        (pid,) = numbers(service, f"jobs/{handle.job_id}/runs")
        psutil.Process(pid).parent().kill()
