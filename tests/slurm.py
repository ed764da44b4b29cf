"""A real Slurm of three small nodes in a temporary folder, all on this machine, for a test session."""

import contextlib
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

NODES = ("n1", "n2", "n3")
_PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scancel", "scontrol", "sinfo")
_CONFIG = """
ClusterName=nasflow
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
SlurmUser={user}
SlurmdUser={user}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
ReturnToService=1
SchedulerParameters=sched_min_interval=0,sched_interval=1,batch_sched_delay=0
SelectType=select/cons_tres
SelectTypeParameters=CR_Core,CR_LLN
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
MinJobAge=10
KillWait=30
MessageTimeout=2
GresTypes=gpu
{nodes}
PartitionName=main Nodes={names} Default=YES MaxTime=60 State=UP
PartitionName=closed Nodes={names} State=DOWN
"""


@dataclass
class Slurm:
    """The cluster. `environment` is what its client commands need."""

    folder: Path
    _daemons: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def environment(self) -> dict[str, str]:
        return {"SLURM_CONF": str(self.folder / "slurm.conf")}

    def call(self, *command: str) -> str:
        """What a client command prints."""
        return subprocess.run(
            command, env=os.environ | self.environment, capture_output=True, text=True, check=True, timeout=30
        ).stdout

    def start(self) -> None:
        """Start the daemons, and wait until the nodes are idle."""
        ports = _free_ports(1 + len(NODES))
        nodes = [
            f"NodeName={name} NodeHostname={socket.gethostname()} NodeAddr=127.0.0.1 Port={port} "
            "CPUs=2 RealMemory=1000 Gres=gpu:1"
            for name, port in zip(NODES, ports[1:], strict=True)
        ]
        text = _CONFIG.format(
            host=socket.gethostname(),
            user=pwd.getpwuid(os.geteuid()).pw_name,
            folder=self.folder,
            controller_port=ports[0],
            nodes="\n".join(nodes),
            names=",".join(NODES),
        )
        (self.folder / "slurm.conf").write_text(text)
        gpus = [f"NodeName={name} Name=gpu File=/dev/null" for name in NODES]  # Slurm counts files
        (self.folder / "gres.conf").write_text("\n".join(["AutoDetect=off", *gpus, ""]))
        for name in ("munge", "state", *(f"spool-{node}" for node in NODES)):
            (self.folder / name).mkdir(mode=0o755)
        munge = self.folder / "munge"
        (munge / "key").write_bytes(os.urandom(1024))
        (munge / "key").chmod(0o400)
        files = {"key-file": "key", "socket": "socket", "log-file": "log", "pid-file": "pid", "seed-file": "seed"}
        self.daemon("munged", "--foreground", *(f"--{option}={munge / name}" for option, name in files.items()))
        self._wait((munge / "socket").exists, "munged's socket")
        self.start_controller()
        for name in NODES:
            self.daemon("slurmd", "-D", "-N", name)
        self._wait(lambda: self._idle() == len(NODES), "idle nodes")

    def start_controller(self) -> None:
        self.daemon("slurmctld", "-D")

    def daemon(self, *command: str) -> None:
        name = "-".join(word for word in command if not word.startswith("-"))
        with (self.folder / f"{name}.out").open("ab") as log:
            self._daemons[name] = subprocess.Popen(
                [_program(command[0]), *command[1:]],
                env=os.environ | self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
            )

    def stop_daemon(self, name: str) -> None:
        daemon = self._daemons.pop(name)
        daemon.terminate()
        daemon.wait(20)

    def stop(self) -> None:
        """End the daemons, and what runs on the nodes."""
        for name in reversed(list(self._daemons)):
            self.stop_daemon(name)
        for process in psutil.process_iter():
            try:
                if process.name() == "slurmstepd" and process.environ().get("SLURM_CONF", "").startswith(
                    str(self.folder)
                ):
                    process.kill()
            except psutil.Error:  # gone by now, or another user's
                continue

    def _idle(self) -> int:
        try:
            return self.call("sinfo", "--noheader", "--Node", "--partition=main", "--format=%T").split().count("idle")
        except subprocess.CalledProcessError:  # the controller is not up yet
            return 0

    def _wait(self, condition, what: str) -> None:
        deadline = time.monotonic() + 30
        while not condition():
            ended = [name for name, daemon in self._daemons.items() if daemon.poll() is not None]
            if ended or time.monotonic() > deadline:
                logs = "\n".join(path.read_text()[-2000:] for path in self.folder.glob("*.out"))
                raise RuntimeError(f"Slurm has no {what}; ended: {ended}\n{logs}")
            time.sleep(0.05)


@pytest.fixture(scope="session")
def slurm() -> Iterator[Slurm]:
    """The cluster, to which the client commands of this process and of its children speak."""
    if reason := lacking():
        pytest.skip(f"needs {reason}")
    with start_slurm() as cluster:
        yield cluster


def lacking() -> str:
    """What there is not, of what a Slurm takes; nothing if it can be started."""
    missing = [name for name in _PROGRAMS if not _program(name)]
    return f"Slurm's programs, of which {', '.join(missing)} are missing" if missing else ""


@contextlib.contextmanager
def start_slurm() -> Iterator[Slurm]:
    """The cluster, to which the client commands of this process and of its children speak."""
    folder = Path(tempfile.mkdtemp(prefix="nasflow-slurm-"))
    folder.chmod(0o755)
    cluster = Slurm(folder)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in cluster.environment.items():
            patch.setenv(name, value)
        try:
            cluster.start()
            yield cluster
        finally:
            cluster.stop()
            shutil.rmtree(folder, ignore_errors=True)


def _program(name: str) -> str | None:
    return shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin")


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports
