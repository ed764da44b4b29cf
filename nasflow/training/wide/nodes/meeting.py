"""Where a job's process waits for the ranks on other machines: an address, and a key by which they are recognized."""

import contextlib
import hashlib
import hmac
import ipaddress
import json
import logging
import os
import secrets
import select
import socket
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from importlib import metadata
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

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


def _versions() -> str:
    return f"Python {sys.version_info.major}.{sys.version_info.minor} and torch {metadata.version('torch')}"


class UnreachedError(OSError):
    """The job's process can't be reached."""


@dataclass(frozen=True)
class Invitation:
    """What the programs on other machines need to find the job's process. Its file is for its owner only.

    Attributes:
        host: the name of the machine of the job's process.
        port: where it listens.
        key: a new one for each meeting.
        trial: which of the job's trials the ranks train.
        reported: the epochs of the trial on record.
        versions: of what all ranks need the same version of.
    """

    host: str
    port: int
    key: str = field(repr=False)
    trial: int
    reported: int
    versions: str = field(default_factory=_versions)

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

    def refuse_other_versions(self) -> None:
        """Raise InfrastructureError if this machine has other versions: ranks exchange data in the form of theirs."""
        if (here := _versions()) != self.versions:
            raise InfrastructureError(
                f"this machine has {here}, and the job's first machine {self.versions}; all machines of a trial need "
                "the same versions: install them"
            )

    def accept(self, host: str, number: int) -> Connection:
        """Connect to the job's process at an address, as rank `number`, or as the program of node `-number`.

        Raises:
            UnreachedError: it can't be reached.
        """
        try:
            connected = socket.create_connection((host, self.port), _CONNECTS_WITHIN)
            told = number.to_bytes(_NUMBER, "big", signed=True)
            connected.sendall(told + _proof(self.key, _received(connected, _NONCE), told))
        except OSError as error:
            raise UnreachedError(str(error)) from error
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
        dual = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if dual else socket.AF_INET
        self._socket = socket.create_server(("", 0), family=family, dualstack_ipv6=dual)
        self.port: int = self._socket.getsockname()[1]
        self.key = secrets.token_hex(_NONCE)

    def next(self, within: float) -> Guest | None:
        """Return the next that connects and proves to know the key; None if none does in so many seconds."""
        if not select.select([self._socket], [], [], within)[0]:
            return None
        connected, address = self._socket.accept()
        interface = interface_of(_plain(connected.getsockname()))
        nonce = secrets.token_bytes(_NONCE)
        try:
            connected.settimeout(_ANSWERS_WITHIN)
            connected.sendall(nonce)
            told = _received(connected, _NUMBER)
            if not hmac.compare_digest(_received(connected, _PROOF), _proof(self.key, nonce, told)):
                raise ConnectionError("it does not know the key")
        except OSError as error:
            _LOG.warning("a connection from %s is refused: %s", _plain(address), error)
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
        if any(each.address.partition("%")[0] == address for each in addresses):
            return name
    if address.startswith(_LOOPBACK):
        return "lo"  # all of them are its own
    raise InfrastructureError(f"no network interface of this machine has the address {address}")


def own_address() -> str:
    """Return an address of this machine at which others reach it, where they may not know its name, as that of a pod.

    It is the address of its name, or that of a network interface if its name leads to nothing but itself; by IPv6 if it
    has no other.
    """
    found: list[tuple[int, str]] = []
    with contextlib.suppress(OSError):
        found += [(family, str(place[0])) for family, *_, place in socket.getaddrinfo(socket.gethostname(), None)]
    found += [(each.family, each.address) for of_one in psutil.net_if_addrs().values() for each in of_one]
    both = (socket.AF_INET, socket.AF_INET6)
    addresses = [address for family in both for kind, address in found if kind == family]
    return next((address for address in addresses if _leads_here(address)), "127.0.0.1")


def _leads_here(address: str) -> bool:
    """Whether other machines can reach this one by an address of it."""
    numbers = ipaddress.ip_address(address)
    return not (numbers.is_loopback or numbers.is_link_local)


def address_of(connection: Connection) -> str:
    """Return the address of this machine by which a connection was made."""
    with socket.socket(fileno=os.dup(connection.fileno())) as connected:
        return _plain(connected.getsockname())


def _plain(place: Sequence[object]) -> str:
    """Return the address of a socket's place as one of IPv4 if it is one, else without a scope."""
    return str(place[0]).removeprefix("::ffff:").partition("%")[0]


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
