"""Makes SSH services from a file beside their root, in any process."""

import json
from pathlib import Path

from nasflow.config.services.ssh import SshServiceConfig
from nasflow.training_service.ssh.service import SshService

SCRIPTED = "nasflow.testing.scripted_job:run_job_file"


def make(root: Path, slots: int = 1) -> SshService:
    """A service on the hosts that `service.json` names, each with so many slots; jobs are scripted ones."""
    config = json.loads((root.parent / "service.json").read_text())
    hosts = [host | {"slots": slots} for host in config.pop("hosts")]
    return SshService(SshServiceConfig(hosts=hosts, **config), root, root.parent / "code", runner=SCRIPTED, preload=())
