"""Flow runs in forks of a program that has imported what they need.

A flow run is the same as otherwise, but for its imports: a child of the worker that starts it, or of `nasflow serve`,
which start it as they start a program. A worker's program prepares the flow run and then executes another; here a fork
prepares it. If it is a search, the workers of its local service are forks, too (forked_workers.py).
"""

import ctypes
import functools
import importlib
import json
import os
import runpy
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

from tests.flows.forks import Fork, forked_on_request

_SUPERVISOR, _ENGINE = "prefect.runner._workspace_supervisor", "prefect.engine"
_PR_SET_CHILD_SUBREAPER = 36
_REQUEST_BYTES = 2**17
_MOST_FILES = 3
_PLACES = (3, 4, 5, 8, 10, 14)  # among the arguments of `_posixsubprocess.fork_exec`, after the command


def fork_flow_runs() -> Fork | None:
    """Let this process start its flow runs by forks of its memory as it is now.

    Returns:
        what a flow run, or a worker that it asked for, is to do, in the forks; None in this process.
    """
    for module in (_ENGINE, _SUPERVISOR, "nasflow.flows.pool.job_flow"):
        importlib.import_module(module)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork() == 0:
        ours.close()
        return _forked_on_request(theirs)
    theirs.close()
    start = functools.partial(_start, subprocess._fork_exec, ours)  # type: ignore[attr-defined]
    subprocess._fork_exec = start  # type: ignore[attr-defined]
    return None


def run_flow_run(request: dict[str, Any]) -> None:
    """Prepare a flow run, if it is to be prepared, and run it in this process."""
    if request["session"]:
        os.setsid()
    _take_over(request)
    if request["command"][2] == _SUPERVISOR:
        request = _prepared(*request["command"][3:])
        _take_over(request)
    assert request["command"][1:] == ["-m", _ENGINE], request["command"]
    places = [request["folder"], *request["env"].get("PYTHONPATH", "").split(os.pathsep)]
    sys.path[:0] = [place for place in places if place and place not in sys.path]
    sys.argv = request["command"][2:]
    runpy.run_module(_ENGINE, run_name="__main__")


def _start(fork_exec: Callable[..., int], connection: socket.socket, command: Sequence[Any], *others: Any) -> int:
    """Do what `subprocess` asks for, by a fork if it is a flow run, and return the pid."""
    if command[1] != "-m" or command[2] not in (_SUPERVISOR, _ENGINE):
        return fork_exec(command, *others)
    folder, variables, stdin, stdout, stderr, session = (others[place] for place in _PLACES)
    request = {
        "command": [*command],
        "folder": os.fspath(folder or os.getcwd()),  # noqa: PTH109 - not resolved
        "env": dict(os.fsdecode(variable).split("=", 1) for variable in variables),
        "session": session,
    }
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)  # so that it becomes a child of this process
    socket.send_fds(connection, [json.dumps(request).encode()], [stdin, stdout, stderr])
    pid = int(connection.recv(64))
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 0)
    return pid


def _forked_on_request(connection: socket.socket) -> Fork:
    """Fork for each request, until the worker ends; return in the forked processes only."""
    while True:
        text, files, _, _ = socket.recv_fds(connection, _REQUEST_BYTES, _MOST_FILES)
        if not text:
            os._exit(0)
        reading, writing = os.pipe()
        between = os.fork()
        if between == 0:
            if pid := os.fork():
                os.write(writing, str(pid).encode())
                os._exit(0)  # which makes the other a child of the worker
            for file in (reading, writing):
                os.close(file)
            connection.close()
            return _flow_run(json.loads(text), files)
        os.waitpid(between, 0)
        connection.send(os.read(reading, 64))
        for file in (reading, writing, *files):
            os.close(file)


def _flow_run(request: dict[str, Any], files: Sequence[int]) -> Fork:
    """Take over the files of a flow run, beside a process that serves its requests for workers."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork() == 0:
        ours.close()
        for file in files:
            os.close(file)
        return forked_on_request(theirs)
    theirs.close()
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    return Fork(request, [], ours)


def _take_over(request: dict[str, Any]) -> None:
    from prefect.context import refresh_global_settings_context

    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["env"])
    refresh_global_settings_context()


def _prepared(config: str) -> dict[str, Any]:
    """Return what Prefect executes when it has prepared a flow run, which a fork does; end if it can't."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        from prefect.runner import _workspace_supervisor

        def execute(_: str, command: list[str], env: dict[str, str]) -> None:
            with os.fdopen(writing, "w") as file:
                json.dump({"command": command, "folder": os.getcwd(), "env": env}, file)  # noqa: PTH109
            os._exit(0)

        os.execvpe = execute  # type: ignore[assignment]
        code = _workspace_supervisor.main([config])
        sys.stderr.flush()
        os._exit(code)
    os.close(writing)
    with os.fdopen(reading) as file:
        engine = file.read()
    if code := os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]):
        sys.exit(code)
    prepared: dict[str, Any] = json.loads(engine)
    return prepared
