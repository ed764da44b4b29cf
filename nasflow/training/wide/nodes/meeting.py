"""Where a job's process waits for the ranks on other machines: an address, and a key by which they are recognized."""

import contextlib
import hashlib
import hmac
import json
import logging
import os
import secrets
import select
import socket
from dataclasses import asdict, dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import psutil
from pydantic import TypeAdapter

from nasflow.errors import InfrastructureError
from nasflow.system.small_files import write_private

_LOG = logging.getLogger(__name__)
_LOOPBACK = "127."
_NONCE, _PROOF, _NUMBER = 32, hashlib.sha256().digest_size, 4  # bytes
_ANSWERS_WITHIN = 10.0  # seconds
_CONNECTS_WITHIN = 60.0
_KEEP_ALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}  # a machine that vanished ends connections


@dataclass(frozen=True)
class Invitation:
    """What the programs on other machines need to find the job's process. Its file is for its owner only.

    Attributes:
        host: the name of the machine of the job's process.
        port: where it listens.
        key: a new one for each meeting.
        trial: which of the job's trials the ranks train.
        reported: the epochs of the trial on record.
    """

    host: str
    port: int
    key: str = field(repr=False)
    trial: int
    reported: int

    def write(self, path: Path) -> None:
        """Write the file, in place of another. Who connects only proves to know the key."""
        write_private(path, json.dumps(asdict(self)))

    @classmethod
    def read(cls, path: Path) -> "Invitation":
        """Read the file.

        Raises:
            ValueError: it is damaged.
        """
        return TypeAdapter(cls).validate_json(path.read_bytes())

    def accept(self, host: str, number: int) -> Connection:
        """Connect to the job's process at an address, as rank `number`, or as the program of node `-number`.

        Raises:
            OSError: it can't be reached.
        """
        connected = socket.create_connection((host, self.port), _CONNECTS_WITHIN)
        told = number.to_bytes(_NUMBER, "big", signed=True)
        connected.sendall(told + _proof(self.key, _received(connected, _NONCE), told))
        return _kept(connected)


class Guest(NamedTuple):
    """Who has connected.

    Attributes:
        number: as given to `Invitation.accept`.
        interface: the name of the network interface of this machine by which it came.
    """

    number: int
    interface: str
    connection: Connection


class Meeting:
    """The socket of the job's process.

    Attributes:
        port: where it listens, on all addresses of this machine.
        key: a new one.
    """

    def __init__(self) -> None:
        self._socket = socket.create_server(("", 0))
        self.port: int = self._socket.getsockname()[1]
        self.key = secrets.token_hex(_NONCE)

    def next(self, within: float) -> Guest | None:
        """Return the next that connects and proves to know the key; None if none does in so many seconds."""
        if not select.select([self._socket], [], [], within)[0]:
            return None
        connected, address = self._socket.accept()
        interface = interface_of(connected.getsockname()[0])
        nonce = secrets.token_bytes(_NONCE)
        try:
            connected.settimeout(_ANSWERS_WITHIN)
            connected.sendall(nonce)
            told = _received(connected, _NUMBER)
            if not hmac.compare_digest(_received(connected, _PROOF), _proof(self.key, nonce, told)):
                raise ConnectionError("it does not know the key")
        except OSError as error:
            _LOG.warning("a connection from %s is refused: %s", address[0], error)
            connected.close()
            return None
        return Guest(int.from_bytes(told, "big", signed=True), interface, _kept(connected))

    def close(self) -> None:
        """Let nobody connect any more."""
        self._socket.close()


def interface_of(address: str) -> str:
    """Return the name of the network interface of this machine that has an address.

    Raises:
        InfrastructureError: none has.
    """
    for name, addresses in psutil.net_if_addrs().items():
        if any(each.address == address for each in addresses):
            return name
    if address.startswith(_LOOPBACK):
        return "lo"  # all of them are its own
    raise InfrastructureError(f"no network interface of this machine has the address {address}")


def own_address() -> str:
    """Return an address of this machine at which others reach it, where they may not know its name, as that of a pod.

    It is the address of its name, or that of a network interface if its name leads to nothing but itself.
    """
    with contextlib.suppress(OSError):
        named = socket.gethostbyname(socket.gethostname())
        if not named.startswith(_LOOPBACK):
            return named
    found = [each.address for all_of_one in psutil.net_if_addrs().values() for each in all_of_one if _is_ipv4(each)]
    return next((address for address in found if not address.startswith(_LOOPBACK)), "127.0.0.1")


def _is_ipv4(address: Any) -> bool:
    return bool(address.family == socket.AF_INET)


def address_of(connection: Connection) -> str:
    """Return the address of this machine by which a connection was made."""
    with socket.socket(fileno=os.dup(connection.fileno())) as connected:
        return str(connected.getsockname()[0])


def _proof(key: str, nonce: bytes, told: bytes) -> bytes:
    return hmac.digest(bytes.fromhex(key), nonce + told, "sha256")


def _received(connected: socket.socket, count: int) -> bytes:
    received = b""
    while len(received) < count:
        part = connected.recv(count - len(received))
        if not part:
            raise ConnectionError("it was closed")
        received += part
    return received


def _kept(connected: socket.socket) -> Connection:
    """Return a connection for messages, which ends when the other machine has vanished."""
    connected.settimeout(None)
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for name, value in _KEEP_ALIVE.items():
        connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return Connection(connected.detach())
