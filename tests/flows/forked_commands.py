"""Programs in forks of one that has imported nasflow: what `nasflow ...` does, without its seconds of imports.

A test that checks how a command starts, or what memory it takes, starts a program instead (`Searches.start_program`).
"""

import atexit
import functools
import gc
import importlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Self

_REQUEST_BYTES = 2**17


class ForkedProgram:
    """A running fork, with those methods of `subprocess.Popen` that tests use.

    Attributes:
        pid: of its process.
        returncode: once it has ended and was waited for; negative after a signal.
    """

    def __init__(self, connection: socket.socket, output: IO[bytes]):
        self._connection = connection  # to the process that waits for it
        self._output = output
        self.returncode: int | None = None
        self.pid = self._receive(60)

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code.

        Raises:
            TimeoutError: it runs on after so many seconds.
        """
        if self.returncode is None:
            self.returncode = self._receive(timeout)
            self._connection.close()
        return self.returncode

    def poll(self) -> int | None:
        """Its exit code, None if it runs."""
        with suppress(BlockingIOError):
            self.wait(0)
        return self.returncode

    def said(self) -> str:
        """What it has written so far."""
        return os.pread(self._output.fileno(), os.fstat(self._output.fileno()).st_size, 0).decode()

    def communicate(self, timeout: float | None = None) -> tuple[str, None]:
        """All that it has written, once it has ended."""
        self.wait(timeout)
        return self.said(), None

    def send_signal(self, number: int) -> None:
        """Send it a signal, if it runs."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """End it, if it runs."""
        self.send_signal(signal.SIGKILL)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.wait()

    def _receive(self, timeout: float | None) -> int:
        self._connection.settimeout(timeout)
        answer = self._connection.recv(64)
        assert answer, "what waits for the fork has ended"
        return int(answer)


class ForkingProgram:
    """A running program that has imported nasflow and forks when asked. It ends with the process that made it."""

    def __init__(self) -> None:
        self._connection, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, tempfile.TemporaryDirectory() as home:
            subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                env={**os.environ, "PREFECT_HOME": home, "DO_NOT_TRACK": "1"},
                start_new_session=True,
            )
            self._connection.settimeout(300)
            assert self._connection.recv(64), "the program that forks has ended"  # it answers once all is imported

    def start(self, request: dict[str, Any], output: IO[bytes], errors: IO[bytes]) -> ForkedProgram:
        """A fork that writes to these files."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            files = [file.fileno() for file in (theirs, output, errors)]
            socket.send_fds(self._connection, [json.dumps(request).encode()], files)
        return ForkedProgram(ours, output)


@functools.cache
def forking_program() -> ForkingProgram:
    """Return the only one of this process."""
    return ForkingProgram()


def start_forked(command: Sequence[object], folder: Path, env: Mapping[str, str], errors: bool = True) -> ForkedProgram:
    """Start `nasflow ...`, `prefect ...`, `python FILE ...`, `python -m MODULE ...` or `python -c CODE ...`.

    It has no input. What it writes to its standard error is kept with its output, or dropped without `errors`.
    """
    output = tempfile.TemporaryFile()  # noqa: SIM115 - it is open as long as the program is known
    with open(os.devnull, "wb") as nowhere:  # noqa: PTH123
        return forking_program().start(_request(command, folder, env), output, output if errors else nowhere)


def run_forked(
    command: Sequence[object],
    folder: Path,
    env: Mapping[str, str],
    timeout: float = 600,
    disk: tuple[Path, str] | None = None,
) -> "subprocess.CompletedProcess[str]":
    """Run the same to its end. It alone sees a `disk`: a folder and its state (doctored_disk.py)."""
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        request = _request(command, folder, env) | {"disk": disk and [str(disk[0]), disk[1]]}
        program = forking_program().start(request, output, errors)
        try:
            code = program.wait(timeout)
        except TimeoutError:
            program.kill()
            program.wait(60)
            raise
        for file in (output, errors):
            file.seek(0)
        return subprocess.CompletedProcess(request["command"], code, output.read().decode(), errors.read().decode())


def _request(command: Sequence[object], folder: Path, env: Mapping[str, str]) -> dict[str, Any]:
    return {"command": [*map(str, command)], "folder": str(folder), "env": dict(env)}


def _serve(connection: socket.socket) -> None:
    """Fork for each request; return in the forked processes. A fork beside each waits for it, to send its exit code."""
    connection.send(b"0")
    while True:
        request, files, _, _ = socket.recv_fds(connection, _REQUEST_BYTES, 3)
        if not request:
            os._exit(0)
        answers, output, errors = files
        waiting = os.fork()
        if waiting == 0:
            connection.close()
            pid = os.fork()
            if pid == 0:
                os.close(answers)
                _become(json.loads(request), output, errors)
                return
            with socket.socket(fileno=answers) as answer:
                answer.send(str(pid).encode())
                code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                with suppress(BrokenPipeError):  # the program that asked has ended
                    answer.send(str(code).encode())
            os._exit(0)
        for file in files:
            os.close(file)
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


def _become(request: dict[str, Any], output: int, errors: int) -> None:
    """Take over the arguments, the folder, the environment, the files and the disk of a request."""
    from prefect.context import refresh_global_settings_context

    os.dup2(output, 1)
    os.dup2(errors, 2)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["env"])
    refresh_global_settings_context()
    if request.get("disk"):
        folder, state = request["disk"]
        doctored_disk = runpy.run_path(str(Path(__file__).with_name("doctored_disk.py")))
        doctored_disk["mount_unseen"](Path(folder), state)
        os.chdir(request["folder"])  # through what is mounted now
    sys.argv = request["command"]


def _run() -> object:
    """Run the program and return its exit code."""
    try:
        match sys.argv:
            case ["nasflow", *_]:
                from nasflow.flows.cli import main

                main()
            case ["prefect", *_]:
                from prefect.cli import app

                app()
            case ["python", "-c", code, *arguments]:
                sys.argv = ["-c", *arguments]
                sys.path.insert(0, "")
                exec(code, {"__name__": "__main__"})
            case ["python", "-m", module, *_]:
                sys.argv = sys.argv[2:]
                sys.path.insert(0, str(Path.cwd()))
                runpy.run_module(module, run_name="__main__", alter_sys=True)
            case ["python", file, *_]:
                sys.argv = sys.argv[1:]
                sys.path.insert(0, str(Path(file).parent))
                runpy.run_path(file, run_name="__main__")
    except SystemExit as end:
        return end.code
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def _end(code: object) -> None:
    """End the process as Python does, but for the second that it takes to delete all that was imported."""
    if isinstance(code, str):
        print(code, file=sys.stderr)
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
