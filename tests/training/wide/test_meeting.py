"""Who may take part in a trial: those who know the key, however others behave."""

import socket
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from nasflow.errors import InfrastructureError
from nasflow.training.wide.nodes import meeting
from nasflow.training.wide.nodes.meeting import Guest, Invitation, Meeting, address_of, interface_of, own_address


def invite(at: Meeting, key: str = "") -> Invitation:
    return Invitation("localhost", at.port, key or at.key, 3, 0)


def accept(invitation: Invitation, number: int) -> threading.Thread:
    """In a thread, because both ends wait for each other; what is accepted is closed."""

    def connect() -> None:
        connection = invitation.accept("127.0.0.1", number)
        connection.send_bytes(f"from {number}".encode())
        connection.close()

    thread = threading.Thread(target=connect)
    thread.start()
    return thread


def next_of(at: Meeting, within: float = 5.0) -> Guest | None:
    deadline = time.monotonic() + within
    while time.monotonic() < deadline:
        if (guest := at.next(0.1)) is not None:
            return guest
    return None


@pytest.mark.parametrize("number", [0, 1, 70_000, -1, -70_000])
def test_ranks_and_nodes_say_their_numbers(number: int) -> None:
    at = Meeting()
    thread = accept(invite(at), number)
    guest = next_of(at)
    thread.join()
    at.close()
    assert guest is not None
    assert (guest.number, guest.interface) == (number, "lo")
    assert guest.connection.recv_bytes() == f"from {number}".encode()
    assert address_of(guest.connection) == "127.0.0.1"


def test_a_stranger_is_turned_away_and_the_next_comes_in(caplog: pytest.LogCaptureFixture) -> None:
    at = Meeting()
    with socket.create_connection(("127.0.0.1", at.port)) as stranger:
        stranger.sendall(bytes(4 + 32))
        assert at.next(5.0) is None
        assert "a connection from 127.0.0.1 is refused: it does not know the key" in caplog.text
        thread = accept(invite(at), 1)
        assert next_of(at) is not None
    thread.join()
    at.close()


def test_another_key_is_none() -> None:
    at = Meeting()
    thread = accept(invite(at, "00" * 32), 1)
    assert at.next(5.0) is None
    thread.join()
    at.close()


def test_another_number_than_that_of_the_proof_is_refused() -> None:
    at = Meeting()
    with socket.create_connection(("127.0.0.1", at.port)) as stranger:
        thread = threading.Thread(target=at.next, args=(5.0,))
        thread.start()
        nonce = stranger.recv(32)
        proof = meeting._proof(at.key, nonce, (1).to_bytes(4, "big", signed=True))
        stranger.sendall((2).to_bytes(4, "big", signed=True) + proof)
        thread.join()
        assert stranger.recv(1) == b"", "it was closed"
    at.close()


def test_who_says_nothing_or_leaves_does_not_stop_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meeting, "_ANSWERS_WITHIN", 0.2)
    at = Meeting()
    with socket.create_connection(("127.0.0.1", at.port)):
        socket.create_connection(("127.0.0.1", at.port)).close()
        thread = accept(invite(at), 1)
        assert next_of(at) is not None
    thread.join()
    at.close()


def test_the_file_of_an_invitation_is_for_its_owner_and_shows_no_key_elsewhere(tmp_path: Path) -> None:
    at = Meeting()
    own = invite(at)
    own.write(tmp_path / "invitation.json")
    at.close()
    assert (tmp_path / "invitation.json").stat().st_mode & 0o777 == 0o600
    assert Invitation.read(tmp_path / "invitation.json") == own
    assert at.key not in repr(own)
    (tmp_path / "invitation.json").chmod(0o644)
    own.write(tmp_path / "invitation.json")
    assert (tmp_path / "invitation.json").stat().st_mode & 0o777 == 0o600, "a new file"
    for damaged in (b"", b"[]", b'{"host": "a"}', b'{"host": "a", "port": "x", "key": "", "trial": 0, "reported": 0}'):
        (tmp_path / "damaged").write_bytes(damaged)
        with pytest.raises(ValueError, match=r"validation error"):
            Invitation.read(tmp_path / "damaged")


def test_an_address_of_no_interface_is_said() -> None:
    assert interface_of("127.0.1.1") == "lo"
    with pytest.raises(InfrastructureError, match=r"no network interface of this machine has .*113\.7"):
        interface_of("203.0.113.7")


def test_a_machine_is_reached_at_its_own_address() -> None:
    at = Meeting()
    with socket.create_connection((own_address(), at.port), 10) as connected:
        assert interface_of(connected.getpeername()[0])
    at.close()


@pytest.mark.parametrize("named", ["127.0.1.1", "::1", OSError("no such name")])
def test_a_name_that_others_can_not_use(named: str | OSError, monkeypatch: pytest.MonkeyPatch) -> None:
    name(monkeypatch, *([named] if isinstance(named, str) else []))
    assert own_address() not in ("127.0.1.1", "::1")
    assert interface_of(own_address())
    monkeypatch.setattr(meeting.psutil, "net_if_addrs", dict)
    assert own_address() == "127.0.0.1"


@pytest.mark.parametrize(
    ("addresses", "chosen"),
    [
        (["fd00::7", "10.1.2.3"], "10.1.2.3"),
        (["::1", "fd00::7"], "fd00::7"),
        (["fe80::1%eth0", "2001:db8::1"], "2001:db8::1"),
    ],
)
def test_a_machine_without_ipv4(addresses: list[str], chosen: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name(monkeypatch, *addresses)
    monkeypatch.setattr(meeting.psutil, "net_if_addrs", dict)
    assert own_address() == chosen


def name(monkeypatch: pytest.MonkeyPatch, *addresses: str) -> None:
    """Let the name of this machine lead to these addresses, or to none."""

    def look_up(name: str, port: None) -> list[tuple[object, ...]]:
        if not addresses:
            raise OSError("no such name")
        kinds = [(socket.AF_INET6 if ":" in each else socket.AF_INET, each) for each in addresses]
        return [(kind, socket.SOCK_STREAM, 6, "", (each, 0)) for kind, each in kinds]

    monkeypatch.setattr(meeting.socket, "getaddrinfo", look_up)


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="needs IPv6")
def test_machines_meet_by_ipv6_too() -> None:
    at, found = Meeting(), []
    thread = threading.Thread(target=lambda: found.append(invite(at).accept("::1", 1)))
    thread.start()
    guest = next_of(at)
    thread.join()
    at.close()
    assert guest is not None and (guest.number, guest.interface) == (1, "lo")
    assert [address_of(connection) for connection in found] == ["::1"]


def test_other_versions_are_refused_by_name() -> None:
    invitation = invite(at := Meeting())
    at.close()
    invitation.refuse_other_versions()
    other = replace(invitation, versions="Python 3.9 and torch 2.1")
    with pytest.raises(
        InfrastructureError, match=r"this machine has Python 3\.\d+ and torch .*first machine Python 3\.9"
    ):
        other.refuse_other_versions()
