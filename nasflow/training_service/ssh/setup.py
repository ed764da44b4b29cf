"""Prepares a host for jobs: ships nasflow and the user's code, and creates a folder for the study."""

import hashlib
import secrets
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath

from nasflow.config.services.ssh import SshHostConfig, SshServiceConfig
from nasflow.errors import ServiceError
from nasflow.training_service.ship import code_archive
from nasflow.training_service.ship.code_dir import collect, nasflow_package
from nasflow.training_service.ssh.connect.connection import SshConnection
from nasflow.training_service.ssh.probe import HostReport, probe, refuse

_UNPACKS_WITHIN = 120.0  # seconds


@dataclass(frozen=True)
class Packed:
    """An archive as a file, so that hosts reached later get the same content as the first."""

    digest: str
    file: Path


@dataclass(frozen=True)
class Place:
    """The paths on a host.

    Attributes:
        root: the study's folder.
        code: the user's code.
        agent: the agent's command line.
    """

    root: PurePosixPath
    code: PurePosixPath
    agent: tuple[str, ...]


class Supplies:
    """The code shipped to all hosts of a service, packed once.

    Args:
        config: the service's config.
        base_dir: the folder of the user's code.
        root: the study's folder on this machine, which is not shipped.
        study: returns the name of the study's folder on the hosts.
    """

    def __init__(self, config: SshServiceConfig, base_dir: Path, root: Path, study: Callable[[], str]):
        self._config = config
        self._base_dir = base_dir.absolute()
        self._root = root
        self._study = study
        self._lock = threading.Lock()
        self._folder = tempfile.TemporaryDirectory(prefix="nasflow-")

    def pack(self) -> None:
        """Pack the code to ship, once.

        Raises:
            ServiceError: there is too much to ship.
        """
        with self._lock:
            _ = self._packed

    def check(self, connection: SshConnection, host: SshHostConfig) -> HostReport:
        """Check whether a host can run jobs. Leaves nothing on the host.

        Raises:
            ServiceError: it can't.
            Unreachable: it does not answer.
        """
        report = probe(connection, host)
        refuse(report, host, self._config)
        return report

    def ship(self, connection: SshConnection, host: SshHostConfig) -> Place:
        """Ship to a host what it lacks.

        Raises:
            ServiceError: it can't run jobs, or its disk is full.
            Unreachable: it does not answer.
        """
        self.pack()
        report = self.check(connection, host)
        work_dir = PurePosixPath(report.work_dir)
        places = [_deliver(connection, host, work_dir, packed) for packed in self._packed]
        path = [f"PYTHONPATH={places[1]}"] if self._config.nasflow == "ship" else []
        own = hashlib.sha256(host.name.encode()).hexdigest()[:8]  # hosts may have the same home
        root = work_dir / "studies" / f"{self._study()}-{own}"
        # With UTF-8 names of files are the same here and there, whatever the locale. Jobs keep the locale's encoding.
        program = [host.python, "-X", "utf8", "-P", "-m", "nasflow.training_service.ssh.agent", str(root)]
        return Place(root=root, code=places[0], agent=("env", *path, *program))

    @cached_property
    def _packed(self) -> list[Packed]:
        """Return the user's code and, if it is shipped, nasflow."""
        archives = [collect(self._base_dir, self._config.code, leave_out=[self._root, self._root.parent])]
        if self._config.nasflow == "ship":
            archives.append(nasflow_package())
        packed = []
        for archive in archives:
            file = Path(self._folder.name) / f"{archive.digest}.tar.gz"
            with file.open("wb") as target:
                digest = archive.write(target)
            packed.append(Packed(digest, file))
        return packed


def _deliver(connection: SshConnection, host: SshHostConfig, work_dir: PurePosixPath, packed: Packed) -> PurePosixPath:
    """Make sure that an archive's content is on a host, and return its folder there."""
    folder = work_dir / "code"
    with connection.sftp() as sftp:
        try:
            sftp.stat(str(folder / packed.digest))
            return folder / packed.digest
        except FileNotFoundError:
            incoming = work_dir / f"incoming-{secrets.token_hex(8)}.tar.gz"
    try:
        made = connection.run(["mkdir", "-p", str(folder)])
        with connection.sftp() as sftp:
            sftp.put(str(packed.file), str(incoming))
        program = Path(code_archive.__file__).read_bytes()
        unpacked = connection.run(
            [host.python, "-", str(incoming), str(folder), packed.digest], program, _UNPACKS_WITHIN
        )
    finally:
        connection.run(["rm", "-f", str(incoming)])
    for step in (made, unpacked):
        if step.returncode != 0:
            said = (step.stdout + step.stderr).decode(errors="replace").strip().splitlines() or ["no message"]
            raise ServiceError(f"{connection.place}: code can't be put into {folder}: {said[-1]}")
    return folder / packed.digest
