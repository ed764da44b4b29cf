"""Hosts with separate addresses on a network inside this machine: network namespaces, which only root can make."""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path

import pytest

from tests.sshd import Sshd, sshd_program

_count = count()
_NETWORK = "198.18.{:d}.{:d}"
"""Of the addresses that are kept for tests of networks (RFC 2544)."""


class NetworkHost(Sshd):
    """A host that has a network cable."""

    def __init__(self, folder: Path, address: str, namespace: str, cable: str):
        super().__init__(folder, (), {}, address, ("ip", "netns", "exec", namespace))
        self._namespace, self._cable = namespace, cable

    def unplug(self) -> None:
        """Nothing reaches it any more, and it reaches nobody."""
        _ip("link", "set", self._cable, "down")

    def plug_in(self) -> None:
        """It is reached again."""
        _ip("link", "set", self._cable, "up")

    def cut_power(self) -> None:
        """Unplug it, and kill all that runs there."""
        self.unplug()
        self.stop()
        while pids := _ip("netns", "pids", self._namespace).split():
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), 9)


@contextlib.contextmanager
def start_hosts(folder: Path, names: Sequence[str]) -> Iterator[list[NetworkHost]]:
    """Hosts on one network, which this machine reaches, too; they run until the end of the block."""
    sshd_program()
    if os.getuid() or not shutil.which("ip"):
        pytest.skip("needs root, and ip: apt-get install iproute2")
    own = f"{os.getpid()}-{next(_count)}"  # what a namespace had goes some time after it
    bridge = f"nas{own}"
    subnet = os.getpid() % 250
    _ip("link", "add", bridge, "type", "bridge")
    namespaces: list[str] = []
    hosts: list[NetworkHost] = []
    try:
        _ip("address", "add", f"{_NETWORK.format(subnet, 1)}/24", "dev", bridge)
        _ip("link", "set", bridge, "up")
        for number, name in enumerate(names, 2):
            namespace, cable, address = f"nas{own}-{name}", f"n{own}{name}", _NETWORK.format(subnet, number)
            _ip("netns", "add", namespace)
            namespaces.append(namespace)
            _ip("link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", namespace)
            _ip("link", "set", cable, "master", bridge, "up")
            for arguments in (("address", "add", f"{address}/24", "dev", "eth0"), ("link", "set", "eth0", "up")):
                _ip("-netns", namespace, *arguments)
            _ip("-netns", namespace, "link", "set", "lo", "up")
            host = NetworkHost(folder / name, address, namespace, cable)
            hosts.append(host)
            host.start()
        yield hosts
    finally:
        for host in hosts:
            host.cut_power()
        for namespace in namespaces:
            _ip("netns", "del", namespace)
        _ip("link", "del", bridge)


def _ip(*arguments: str) -> str:
    return subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True).stdout
