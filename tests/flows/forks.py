"""Forks of a program, made when another program asks through a socket."""

import json
import os
import signal
import socket
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, Any, Self

_REQUEST_BYTES = 2**17
_MOST_FILES = 4


class ForkedProgram:
    """A running fork, with those methods of `subprocess.Popen` that tests and services use.

    Attributes:
        pid: of its process.
        returncode: once it has ended and was waited for; negative after a signal.
        stdin: writes to its standard input; None if it has none.
    """

    def __init__(self, connection: socket.socket, output: IO[bytes], stdin: IO[bytes] | None = None):
        self._connection = connection  # to the process that waits for it
        self._output = output
        self.stdin = stdin
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


@dataclass(frozen=True)
class Fork:
    """What a fork was asked for.

    Attributes:
        request: what it is to do.
        files: the descriptors that came with the request.
        second: asks the second process of this kind (see `forked_on_request`), if there is one.
    """

    request: dict[str, Any]
    files: Sequence[int]
    second: socket.socket | None = None


def ask(connection: socket.socket, request: dict[str, Any], files: Sequence[int]) -> socket.socket:
    """Ask for a fork with these files, and return the connection to the process that waits for it."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        socket.send_fds(connection, [json.dumps(request).encode()], [theirs.fileno(), *files])
    return ours


def forked_on_request(connection: socket.socket, second: bool = False) -> Fork:
    """Fork for each request, until the connection is closed; return in the forked processes only.

    A process beside each waits for it, to send its pid and its exit code. With `second`, one more process beside it
    serves the requests of the fork: it has its memory, but no threads.
    """
    while True:
        request, files, _, _ = socket.recv_fds(connection, _REQUEST_BYTES, _MOST_FILES)
        if not request:
            os._exit(0)
        if os.fork() == 0:
            connection.close()
            return _fork_and_wait(json.loads(request), files, second)
        for file in files:
            os.close(file)
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


def _fork_and_wait(request: dict[str, Any], files: Sequence[int], second: bool) -> Fork:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) if second else (None, None)
    if ours and theirs and os.fork() == 0:
        ours.close()
        for file in files:
            os.close(file)
        return forked_on_request(theirs)
    if theirs:
        theirs.close()
    answers, *others = files
    pid = os.fork()
    if pid == 0:
        os.close(answers)
        return Fork(request, others, ours)
    if ours:
        ours.close()
    for file in others:
        os.close(file)
    with socket.socket(fileno=answers) as answer, suppress(BrokenPipeError):  # the program that asked may have ended
        answer.send(str(pid).encode())
        answer.send(str(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])).encode())
    os._exit(0)
