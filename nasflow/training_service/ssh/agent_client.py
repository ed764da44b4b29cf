"""The controller's side of a host's agent: calls by name, one at a time."""

import time
from collections.abc import Sequence

from paramiko import SSHException
from pydantic import BaseModel, ValidationError

from nasflow.errors import ServiceError
from nasflow.training_service.ssh.agent import GREETING
from nasflow.training_service.ssh.connect.connection import SshConnection
from nasflow.training_service.ssh.connect.errors import Unreachable
from nasflow.training_service.ssh.messages import Answer, Request

_STARTS_WITHIN = 60.0  # seconds; the first imports on a busy host are slow
LONGEST = 1 << 26  # bytes of a line; an honest agent's are far shorter


class AgentClient:
    """Starts the agent and calls it.

    Args:
        connection: to the host.
        program: the agent's command line.
        where: the host, for messages.
        timeout: seconds to wait for an answer, unless a call allows more.

    Raises:
        ServiceError: the agent does not start.
        Unreachable: the host does not answer.
    """

    def __init__(self, connection: SshConnection, program: Sequence[str], where: str, timeout: float):
        self._where = where
        self._timeout = timeout
        self._buffer = bytearray()
        self._channel = connection.open_channel_process(program)
        deadline = time.monotonic() + _STARTS_WITHIN
        while not self._line(deadline).endswith(GREETING):  # output of the login shell may come before it
            pass

    def call(self, name: str, message: BaseModel | None = None, timeout: float | None = None) -> str:
        """Make a call and return its result. The time limit begins when the call is sent, which may take long.

        Raises:
            ServiceError: the call failed on the host, or its answer can't be read.
            Unreachable: there was no answer in time; whether the call was carried out is unknown.
        """
        request = Request(call=name, message=message.model_dump_json() if message else "")
        try:
            self._channel.settimeout(timeout or self._timeout)
            self._channel.sendall(request.model_dump_json().encode() + b"\n")
        except (OSError, EOFError, SSHException) as error:
            raise Unreachable(f"{self._where} no longer takes requests: {error or 'no answer in time'}") from error
        try:
            answer = Answer.model_validate_json(self._line(time.monotonic() + (timeout or self._timeout)))
        except ValidationError as error:
            raise self._misbehaves("can't be read") from error
        if answer.error is not None:
            raise ServiceError(f"training_service.hosts: '{self._where}': {answer.error}")
        return answer.result

    def leave(self) -> None:
        """Tell the agent to end and wait for that."""
        self._channel.shutdown_write()
        self._channel.status_event.wait(self._timeout)
        self._channel.close()

    def close(self) -> None:
        """Close the channel without waiting."""
        self._channel.close()

    def _line(self, deadline: float) -> str:
        searched = 0
        while (end := self._buffer.find(b"\n", searched)) < 0:
            searched = len(self._buffer)
            if searched > LONGEST:
                raise self._misbehaves(f"is longer than {LONGEST / 1e6:.0f} MB")
            self._buffer += self._receive(deadline)
        line = self._buffer[:end].decode(errors="replace")
        del self._buffer[: end + 1]
        return line

    def _receive(self, deadline: float) -> bytes:
        left = deadline - time.monotonic()  # asked each time, because output may never pause
        try:
            if left <= 0:
                raise TimeoutError
            self._channel.settimeout(left)
            data = self._channel.recv(1 << 16)
        except OSError as error:
            raise Unreachable(f"{self._where} does not answer") from error
        if not data:
            raise self._ended()
        return data

    def _misbehaves(self, how: str) -> ServiceError:
        return ServiceError(f"training_service.hosts: '{self._where}': its answer {how}")

    def _ended(self) -> Exception:
        """Return why the channel ended: the agent's exit, if it reported one, else a broken connection."""
        if not self._channel.exit_status_ready() or self._channel.recv_exit_status() == -1:
            return Unreachable(f"the connection to {self._where} ended")
        said = self._errors().strip().splitlines() or ["it says nothing"]
        return ServiceError(
            f"training_service.hosts: '{self._where}': nasflow's agent ended there "
            f"with code {self._channel.recv_exit_status()}: {said[-1]}"
        )

    def _errors(self) -> str:
        self._channel.settimeout(1.0)
        said = b""
        try:
            while len(said) < LONGEST and (data := self._channel.recv_stderr(1 << 16)):
                said += data
        except TimeoutError:
            pass  # all available output has been read
        return said.decode(errors="replace")
