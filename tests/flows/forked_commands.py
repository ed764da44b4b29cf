"""Programs in forks of one that has imported nasflow: what `nasflow ...` does, without its seconds of imports.

So are the workers of the local service that such a command starts (forked_workers.py), and the flow runs that a worker
of Prefect or `nasflow serve` starts (forked_flow_runs.py). A test that checks how a command starts, or what memory it
takes, starts a program instead (`Searches.start_program`).
"""

import atexit
import functools
import gc
import importlib
import os
import runpy
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from tests.flows import forked_workers
from tests.flows.forked_flow_runs import fork_flow_runs, run_flow_run
from tests.flows.forks import Fork, ForkedProgram, ask, forked_on_request

_REPOSITORY = Path(__file__).parents[2]


class ForkingProgram:
    """A running program that has imported nasflow and forks when asked. It ends with the process that made it."""

    def __init__(self) -> None:
        self._connection, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, tempfile.TemporaryDirectory() as home:
            subprocess.Popen(
                [sys.executable, "-m", "tests.flows.forked_commands", str(theirs.fileno())],
                cwd=_REPOSITORY,
                pass_fds=[theirs.fileno()],
                env={**os.environ, "PREFECT_HOME": home, "DO_NOT_TRACK": "1", **forked_workers.ROOM},
                start_new_session=True,
            )
            self._connection.settimeout(300)
            assert self._connection.recv(64), "the program that forks has ended"  # it answers once all is imported

    def start(self, request: dict[str, Any], output: IO[bytes], errors: IO[bytes]) -> ForkedProgram:
        """A fork that writes to these files."""
        return ForkedProgram(ask(self._connection, request, [output.fileno(), errors.fileno()]), output)


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


def _become(fork: Fork, room: dict[str, int]) -> None:
    """Take over the arguments, the folder, the environment, the files and the disk of a request."""
    from prefect.context import refresh_global_settings_context

    request = fork.request
    os.dup2(fork.files[0], 1)
    os.dup2(fork.files[1], 2)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["env"])
    if fork.second is None:
        forked_workers.become_worker(fork, room)
    else:
        refresh_global_settings_context()
        if not request.get("disk"):  # which a worker would not see
            forked_workers.start_workers_by(fork.second)
    if request.get("disk"):
        folder, state = request["disk"]
        doctored_disk = runpy.run_path(str(Path(__file__).with_name("doctored_disk.py")))
        doctored_disk["mount_unseen"](Path(folder), state)
        os.chdir(request["folder"])  # through what is mounted now
    sys.argv = request["command"]


def _run(room: dict[str, int]) -> object:
    """Run the program and return its exit code."""
    try:
        match sys.argv:
            case ["nasflow" | "prefect" as program, *arguments]:
                fork = fork_flow_runs() if {"serve", "worker"} & set(arguments) else None
                if fork is None:
                    _command(program)()
                elif fork.second is None:
                    _become(fork, room)
                    return _run(room)
                else:
                    forked_workers.start_workers_by(fork.second)
                    run_flow_run(fork.request)
            case [_, "-P", "-m", "nasflow.training_service.local.worker", *_]:
                from nasflow.training_service.local.worker import main as serve

                sys.argv = sys.argv[3:]
                serve()
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


def _command(program: str) -> Callable[[], object]:
    if program == "nasflow":
        from nasflow.flows.cli import main

        return main
    from prefect.cli import app

    return app


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
        if (
            module != "nasflow.training.warm"
        ):  # what it keeps depends on the environment, which each command has its own
            importlib.import_module(module)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    room = forked_workers.find_room()
    sys.path.remove(str(_REPOSITORY))
    gc.freeze()  # else a collection in a fork copies all that was imported
    connection = socket.socket(fileno=int(sys.argv[1]))
    connection.send(b"0")
    _become(forked_on_request(connection, second=True), room)
    _end(_run(room))
