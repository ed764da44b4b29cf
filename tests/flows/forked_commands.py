"""Commands in forks of a program that has imported nasflow: the code of `nasflow ...` without its seconds of imports.

A test that sends signals to a command, or checks how it starts, starts a program instead (`Searches.start`).
"""

import atexit
import functools
import gc
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

_REQUEST_BYTES = 2**17


class ForkingProgram:
    """A running program that has imported nasflow and forks for each command. It ends with the process that made it."""

    def __init__(self) -> None:
        self._connection, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, tempfile.TemporaryDirectory() as home:
            subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                env={**os.environ, "PREFECT_HOME": home, "DO_NOT_TRACK": "1"},
                start_new_session=True,
            )
            self._receive(300)  # once all is imported

    def run(self, request: dict[str, Any], files: Sequence[IO[bytes]], timeout: float) -> int:
        """Return the exit code of a fork that writes its output and its errors to `files`, negative after a signal."""
        socket.send_fds(self._connection, [json.dumps(request).encode()], [file.fileno() for file in files])
        pid = self._receive(60)
        try:
            return self._receive(timeout)
        except TimeoutError:
            os.kill(pid, signal.SIGKILL)
            self._receive(60)
            raise

    def _receive(self, timeout: float) -> int:
        self._connection.settimeout(timeout)
        answer = self._connection.recv(64)
        assert answer, "the program that forks for commands has ended"
        return int(answer)


@functools.cache
def forking_program() -> ForkingProgram:
    """Return the only one of this process."""
    return ForkingProgram()


def run_forked(
    arguments: Sequence[object], folder: Path, env: Mapping[str, str], timeout: float = 600
) -> "subprocess.CompletedProcess[str]":
    """Run `nasflow` with these arguments, and no input, in a folder and an environment."""
    command = ["nasflow", *map(str, arguments)]
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        request = {"command": command, "folder": str(folder), "env": dict(env)}
        code = forking_program().run(request, (output, errors), timeout)
        for file in (output, errors):
            file.seek(0)
        return subprocess.CompletedProcess(command, code, output.read().decode(), errors.read().decode())


def _serve(connection: socket.socket) -> None:
    """Fork for each request and answer its process's pid, then its exit code; return in the forked processes."""
    connection.send(b"0")
    while True:
        request, files, _, _ = socket.recv_fds(connection, _REQUEST_BYTES, 2)
        if not request:
            os._exit(0)
        pid = os.fork()
        if pid == 0:
            connection.close()
            _become(json.loads(request), *files)
            return
        for file in files:
            os.close(file)
        connection.send(str(pid).encode())
        connection.send(str(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])).encode())


def _become(request: dict[str, Any], output: int, errors: int) -> None:
    """Take over the arguments, the folder, the environment and the files of a request."""
    from prefect.context import refresh_global_settings_context

    os.dup2(output, 1)
    os.dup2(errors, 2)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["env"])
    refresh_global_settings_context()
    sys.argv = request["command"]


def _run() -> object:
    """Run the command and return its exit code."""
    from nasflow.flows.cli import main

    try:
        main()
    except SystemExit as end:
        return end.code
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def _end(code: object) -> None:
    """End the process as Python does, but for the second that it takes to delete all that was imported."""
    threading._shutdown()
    atexit._run_exitfuncs()
    gc.collect()  # closes what the command left open, as databases
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))


if __name__ == "__main__":
    from nasflow.flows.server.client import set_up_prefect
    from nasflow.training_service.local.service import PRELOAD  # what jobs of the debug service need

    set_up_prefect(verbose=False)  # as commands do before they import Prefect
    for module in ("nasflow.flows.search_flow", "nasflow.flows.cli", *PRELOAD):
        importlib.import_module(module)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    gc.freeze()  # else a collection in a fork copies all that was imported
    _serve(socket.socket(fileno=int(sys.argv[1])))
    _end(_run())
