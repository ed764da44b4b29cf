"""The ranks of a trial on other machines, as the job's process sees them."""

import json
import socket
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Protocol

from nasflow.config.evaluator.parallel import ParallelConfig
from nasflow.errors import InfrastructureError
from nasflow.job import activity
from nasflow.training.wide.nodes.meeting import Meeting

_POLL = 0.05  # seconds
COME_WITHIN = 300.0  # seconds, for programs that import torch from a busy network file system
_END_WITHIN = 10.0


class Step(Protocol):
    """What has invited the other machines, as `subprocess.Popen`."""

    def poll(self) -> int | None:
        """Return the exit code of what was started for this, if it has ended."""
        ...

    def wait(self, timeout: float | None = None) -> object:
        """Wait for that. Raises `subprocess.TimeoutExpired`."""
        ...

    def kill(self) -> None:
        """End it."""
        ...


class OtherNodes:
    """Invites a program on each machine but this one; it starts the ranks there, which connect to this process.

    If this process ends, or `end` is called, so do all ranks.

    Args:
        parallel: how many machines there are, and how many ranks each has.
        invite: brings an invitation to the other machines.
        look_up: called while it waits for them; what it raises ends the wait.

    Attributes:
        links: to the ranks, by their numbers.
        interface: the network interface of this machine by which they came.
        lacked_memory: the ranks that the kernel has ended for want of memory.

    Raises:
        InfrastructureError: they do not come.
    """

    def __init__(self, parallel: ParallelConfig, invite: Callable[[Meeting], Step], *, look_up: Callable[[], None]):
        self.links: dict[int, Connection] = {}
        self.interface = ""
        self.lacked_memory: set[int] = set()
        self._programs: dict[int, Connection] = {}
        self._codes: dict[int, int] = {}
        self._devices = parallel.devices
        self._meeting = Meeting()
        try:
            self._step = invite(self._meeting)
            try:
                self._receive(parallel, look_up)
            except BaseException:
                self.end()
                raise
        finally:
            self._meeting.close()

    def exit_codes(self) -> dict[int, int]:
        """Return how ranks have ended, those that have, as `multiprocessing` gives it.

        Raises:
            InfrastructureError: a whole node is lost.
        """
        for node, program in list(self._programs.items()):
            try:
                while program.poll():
                    told = json.loads(program.recv_bytes())
                    self._codes |= {int(rank): code for rank, code in told["codes"].items()}
                    self.lacked_memory.update(told["lacked_memory"])
            except (EOFError, OSError):
                del self._programs[node]
                ranks = range(node * self._devices, (node + 1) * self._devices)
                if not all(rank in self._codes for rank in ranks):
                    raise InfrastructureError(f"node {node} of the trial's machines is lost") from None
        return self._codes

    def leave(self, within: float) -> None:
        """Wait, so many seconds at most, until the ranks have ended by themselves, and the programs with them."""
        deadline = time.monotonic() + within
        while self._programs and time.monotonic() < deadline:
            with suppress(InfrastructureError):  # the trial has ended, so nothing is lost
                self.exit_codes()
            time.sleep(_POLL)
        with suppress(subprocess.TimeoutExpired):
            self._step.wait(max(0.0, deadline - time.monotonic()))

    def end(self) -> None:
        """End what still runs: the programs end with the connection to them."""
        for connection in [*self._programs.values(), *self.links.values()]:
            connection.close()
        try:
            self._step.wait(_END_WITHIN)
        except subprocess.TimeoutExpired:
            self._step.kill()
            self._step.wait()

    def _receive(self, parallel: ParallelConfig, look_up: Callable[[], None]) -> None:
        deadline, excused = time.monotonic() + COME_WITHIN, time.monotonic()
        expected = {*range(-parallel.nodes + 1, 0), *range(parallel.devices, parallel.ranks)}
        while expected:
            guest = self._meeting.next(_POLL)
            if guest is not None and guest.number in expected:
                expected.discard(guest.number)
                self.interface = guest.interface
                (self.links if guest.number > 0 else self._programs)[abs(guest.number)] = guest.connection
            look_up()
            activity.excuse((now := time.monotonic()) - excused)  # nothing that the trial does takes this long
            excused = now
            if ended := self.exit_codes():
                raise InfrastructureError(
                    f"ranks of the trial's other machines ended before it began: {ended} (see log)"
                )
            if (code := self._step.poll()) is not None:
                raise InfrastructureError(
                    f"the trial's other machines did not start: srun ended with {code}, see the log"
                )
            if time.monotonic() > deadline:
                raise InfrastructureError(
                    f"the trial's other machines have not reached {socket.gethostname()} within {COME_WITHIN:.0f} s; "
                    "nodes have to accept each other's TCP connections"
                )
