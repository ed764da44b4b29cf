"""Makes SSH services from a file beside their root, in any process."""

import json
from pathlib import Path

from nasflow.config.services.ssh import SshServiceConfig
from nasflow.training_service.ssh.service import SshService
from tests.sshd import Sshd, ssh_section

SCRIPTED = "nasflow.testing.scripted_job:run_job_file"


def on_hosts(hosts: list[Sshd], folder: Path) -> tuple[SshServiceConfig, Path, Path]:
    """The first arguments of a service on hosts with a slot each, its root and its code in a folder."""
    section = ssh_section(hosts, folder / "known_hosts")
    section["hosts"] = [host | {"slots": 1} for host in section["hosts"]]
    return SshServiceConfig.model_validate(section), folder / "root", folder / "code"


def make(root: Path, slots: int = 1) -> SshService:
    """A service on the hosts that `service.json` names, each with so many slots; jobs are scripted ones."""
    config = json.loads((root.parent / "service.json").read_text())
    hosts = [host | {"slots": slots} for host in config.pop("hosts")]
    return SshService(SshServiceConfig(hosts=hosts, **config), root, root.parent / "code", runner=SCRIPTED, preload=())
