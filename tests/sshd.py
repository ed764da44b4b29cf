"""Real sshd programs on 127.0.0.1, one for each "host" of a test, run by the user who runs the tests.

tests/networks.py gives hosts addresses of their own.

Nothing outside the folder of a host is read or written, but for what its logins do: they are this user's. HOME is a
folder of the host's own, for `~` in what runs there; sftp knows only the user's real home.
"""

import contextlib
import os
import pwd
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

_STARTS_WITHIN = 20.0  # seconds


class Sshd:
    """One host: `start()`, `stop()` and what a client needs to log in.

    Args:
        address: at which it listens.
        within: the command that starts a program there.
        sftp: the program of its sftp subsystem; none if empty.
    """

    def __init__(
        self,
        folder: Path,
        path_prefix: Sequence[Path],
        environment: dict[str, str],
        address: str = "127.0.0.1",
        within: Sequence[str] = (),
        *,
        sftp: str = "internal-sftp",
    ):
        self.address = address
        self._within = within
        self._sftp = sftp
        self.folder = folder
        self.home = folder / "home"
        self.home.mkdir(parents=True)
        self.user = pwd.getpwuid(os.getuid()).pw_name
        self.host_key = make_key(folder / "host_key")
        self.user_key = make_key(folder / "user_key")
        (folder / "authorized_keys").write_text(public_key(self.user_key))
        self.port = free_port()
        self._environment = environment | {
            "HOME": str(self.home),
            "PATH": os.pathsep.join([*map(str, path_prefix), "/usr/local/bin", "/usr/bin", "/bin"]),
        }
        self._listener: psutil.Popen | None = None
        self._paused: list[psutil.Process] = []

    @property
    def known_hosts(self) -> Path:
        """A file that knows this host's key, and no other's."""
        file = self.folder / "known_hosts"
        file.write_text(self.known_hosts_line())
        return file

    def known_hosts_line(self) -> str:
        """The host's line for a file that knows several."""
        return f"[{self.address}]:{self.port} {public_key(self.host_key)}"

    def config_host(self, **options: Any) -> dict[str, Any]:
        """An entry of `training_service.hosts`; `options` are added to it or stand in place of its own."""
        return {
            "host": self.address,
            "port": self.port,
            "user": self.user,
            "key_file": str(self.user_key),
            "agent": False,
            "python": sys.executable,
            "work_dir": str(self.folder / "work"),
        } | options

    def start(self) -> None:
        """Listen, on the same port as before if it has been stopped."""
        log = self.folder / "sshd.log"
        config = self.folder / "sshd_config"
        config.write_text(self._config())
        if os.getuid() == 0:
            Path("/run/sshd").mkdir(parents=True, exist_ok=True)  # where root's sshd confines its unprivileged part
        self._listener = psutil.Popen([*self._within, sshd_program(), "-D", "-f", str(config), "-E", str(log)])
        deadline = time.monotonic() + _STARTS_WITHIN
        while not listens(self.port, self.address):
            if self._listener.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise RuntimeError(f"sshd did not start: {log.read_text()}")
            time.sleep(0.01)

    def stop(self) -> None:
        """Kill the program and its connections; what they started in sessions of its own goes on."""
        if self._listener is None:
            return
        self._listener.suspend()  # it shall answer no one any more
        self.kill_connections()
        self._listener.kill()
        self._listener.wait()
        self._listener = None

    def pause(self) -> None:
        """Neither listener nor connections answer: what a client sees of a cut network."""
        assert self._listener is not None
        self._paused = [self._listener, *self.connections()]
        for process in self._paused:
            process.suspend()

    def resume(self) -> None:
        """Answer again, on the connections from before, too."""
        while self._paused:  # not `connections()`: one of them may since be the program that it was forked for
            with contextlib.suppress(psutil.NoSuchProcess):
                self._paused.pop().resume()

    def kill_connections(self) -> None:
        """Kill what holds the connections; the listener goes on, and so does what the connections started."""
        processes = self.connections()
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGKILL)
        deadline = time.monotonic() + _STARTS_WITHIN
        while any(alive(process) for process in processes) and time.monotonic() < deadline:
            time.sleep(0.005)

    def connections(self) -> list[psutil.Process]:
        """The listener's processes that hold connections, none that was started through one."""
        assert self._listener is not None
        found = []
        for process in self._listener.children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                if process.name().startswith("sshd"):
                    found.append(process)
        return found

    def started(self) -> list[psutil.Process]:
        """What was started through connections that are still held."""
        assert self._listener is not None
        connections = set(self.connections())
        return [process for process in self._listener.children(recursive=True) if process not in connections]

    def wait_until_left(self) -> None:
        """Wait until no connection is held, and nothing runs that was started through one; it must end by itself."""
        assert self._listener is not None
        deadline = time.monotonic() + _STARTS_WITHIN
        while left := [process for process in self._listener.children(recursive=True) if alive(process)]:
            assert time.monotonic() < deadline, left
            time.sleep(0.01)

    def _config(self) -> str:
        environment = " ".join(f'"{name}={value}"' for name, value in self._environment.items())
        subsystem = f"Subsystem sftp {self._sftp}" if self._sftp else ""
        return f"""\
Port {self.port}
ListenAddress {self.address}
HostKey {self.host_key}
AuthorizedKeysFile {self.folder / "authorized_keys"}
PidFile none
StrictModes no
UsePAM no
UseDNS no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
{subsystem}
MaxSessions 100
MaxStartups 100:30:200
SetEnv {environment}
"""


@contextlib.contextmanager
def start_sshd(
    folder: Path, *, path_prefix: Sequence[Path] = (), sftp: str = "internal-sftp", **environment: str
) -> Iterator[Sshd]:
    """A host that runs until the end of the block.

    Args:
        folder: for its files; made if it is missing, and no other host's.
        path_prefix: folders before the system's own in the PATH of what is started there.
        sftp: the program of its sftp subsystem; none if empty.
        environment: more variables of what is started there.
    """
    sshd_program()
    host = Sshd(folder, path_prefix, environment, sftp=sftp)
    try:
        host.start()
        yield host
    finally:
        host.stop()


def ssh_section(sshds: Sequence[Sshd], known_hosts: Path, **options: Any) -> dict[str, Any]:
    """A config's `training_service` on these hosts, whose keys are written to `known_hosts`.

    An option `hosts` (a list of `config_host`) takes the place of theirs. The user's own OpenSSH configuration is not
    read.
    """
    known_hosts.write_text("".join(sshd.known_hosts_line() for sshd in sshds))
    return {
        "kind": "ssh",
        "hosts": [sshd.config_host() for sshd in sshds],
        "known_hosts": str(known_hosts),
        "ssh_config": os.devnull,
    } | options


def make_key(file: Path, passphrase: str = "") -> Path:
    """Make a private key; its public half lies beside it."""
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", passphrase, "-C", "", "-f", str(file)], check=True)
    return file


def public_key(private: Path) -> str:
    """The public half of a key, as a line."""
    return private.with_name(f"{private.name}.pub").read_text()


def fake_program(folder: Path, name: str, script: str) -> Path:
    """Put an executable into a folder for `path_prefix`; `script` begins with its #! line."""
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / name
    program.write_text(script)
    program.chmod(0o755)
    return program


def without_site_packages(folder: Path, name: str = "python3") -> Path:
    """A Python that has its standard library alone: no torch, no pydantic."""
    return fake_program(folder, name, f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -S "$@"\n')


def sshd_program() -> str:
    """Its absolute path, without which it refuses to start. Skips the test where there is none."""
    program = shutil.which("sshd", path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin"]))
    if program is None:
        pytest.skip("needs an sshd: apt-get install openssh-server")
    return program


def free_port() -> int:
    """A port on which nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def listens(port: int, address: str = "127.0.0.1") -> bool:
    """Someone accepts connections there."""
    with socket.socket() as probe:
        return probe.connect_ex((address, port)) == 0


def alive(process: psutil.Process) -> bool:
    """It runs; a zombie does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
