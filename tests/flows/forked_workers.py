"""Workers of the local service in forks of a program that has imported what jobs need.

A worker is the same program as otherwise, but for its imports: the service starts it as it starts a program, and finds
it and its descendants by the environment that other processes see.
"""

import ctypes
import os
import socket
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

from nasflow.training_service.local.state import ROOT_VARIABLE, TOKEN_VARIABLE
from tests.flows.forks import Fork, ForkedProgram, ask

_MODULE = "nasflow.training_service.local.worker"
ROOM = {TOKEN_VARIABLE: "0" * 16, ROOT_VARIABLE: "0" * 1000}
"""The last variables of the program that forks: workers write theirs there, where other processes see them."""


def find_room() -> dict[str, int]:
    """Return the addresses of the values of ROOM in this process, before any is changed."""
    getenv = ctypes.CDLL(None).getenv
    getenv.restype = ctypes.c_void_p
    return {name: getenv(name.encode()) for name in ROOM}


def start_workers_by(connection: socket.socket) -> None:
    """Let the local service of this process ask there for workers."""
    from nasflow.training_service.local import service

    def start(command: list[str], *, env: dict[str, str], cwd: Path | None, stdout: IO[bytes], **others: Any) -> Any:
        if _MODULE not in command or "--fresh" in command:
            return subprocess.Popen(command, env=env, cwd=cwd, stdout=stdout, **others)
        request = {"command": command, "folder": str(cwd or Path.cwd()), "env": env}
        reading, writing = os.pipe()
        answers = ask(connection, request, [stdout.fileno(), stdout.fileno(), reading])
        os.close(reading)
        written = os.fdopen(os.dup(stdout.fileno()), "rb")  # the service closes its own
        return ForkedProgram(answers, written, os.fdopen(writing, "wb"))

    setattr(service, "subprocess", SimpleNamespace(Popen=start, PIPE=subprocess.PIPE))  # noqa: B010 - for mypy


def become_worker(fork: Fork, room: dict[str, int]) -> None:
    """Take over the session, the input and the environment of a worker."""
    import torch

    os.setsid()
    os.dup2(fork.files[2], 0)
    libc = ctypes.CDLL(None)
    for name, address in room.items():
        value = fork.request["env"][name].encode()
        assert len(value) <= len(ROOM[name]), f"{name} is too long"
        ctypes.memmove(address, value.ljust(len(ROOM[name]), b"\0"), len(ROOM[name]))
        libc.putenv(ctypes.c_void_p(address - len(name) - 1))  # else `getenv` finds a copy
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", torch.get_num_threads())))  # read at import
