"""The connection of a rank with the job's process: JSON both ways, so that neither unpickles what the other sends."""

import json
import time
from multiprocessing.connection import Connection
from typing import Any

import torch.distributed as dist

from nasflow.clean_text import error_text
from nasflow.errors import InfrastructureError
from nasflow.job.disk_full import is_full
from nasflow.system.open_files import lacks_files
from nasflow.training.device.fault import is_of_hardware

GO_ON, END = b"go on", b"end"
"""The answers to a report."""

_LOST_PEER = ("closed by peer", "reset by peer", "Broken pipe", "gloo/transport")


class Link:
    """A rank's end of the connection.

    Attributes:
        reported: the epochs on record; they are not reported again.
        interface: the network interface by which ranks reach each other.
        host: the address of the first machine, as seen from this one.
    """

    def __init__(self, connection: Connection, reported: int, interface: str, host: str = "127.0.0.1"):
        self.reported, self.interface, self.host = reported, interface, host
        self._connection = connection

    def give(self, value: Any) -> None:
        """Give all other ranks a value, before any report."""
        self._connection.send_bytes(json.dumps({"shared": value}).encode())

    def take(self) -> Any:
        """Return what another rank gives."""
        return json.loads(self._connection.recv_bytes())["shared"]

    def goes_on_after(self, report: dict[str, Any]) -> bool:
        """Report an epoch. Return whether the trial goes on after it."""
        self._connection.send_bytes(json.dumps(report).encode())
        return self._connection.recv_bytes() == GO_ON

    def tell_error(self, error: BaseException) -> None:
        """Report why this rank ends."""
        told = {
            "error": error_text(error),
            "at": time.time(),  # of several machines
            "is_lost_peer": isinstance(error, dist.DistError) or any(text in str(error) for text in _LOST_PEER),
            "is_infrastructure": (
                isinstance(error, InfrastructureError) or is_full(error) or lacks_files(error) or is_of_hardware(error)
            ),
        }
        self._connection.send_bytes(json.dumps(told).encode())
