"""The way to a host as the user's OpenSSH client configuration says it, and what opens the door there."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from paramiko import HostKeys

from nasflow.config.services.ssh import SshServiceConfig
from nasflow.errors import ServiceError
from nasflow.training_service.ssh.connect.connection import SshConnection
from nasflow.training_service.ssh.connect.errors import Refused, Unreachable
from nasflow.training_service.ssh.connect.route import find_route
from tests.sshd import Sshd, make_key, public_key, ssh_section, start_sshd

PASSPHRASE = "correct horse"


class Net:
    """Two hosts, of which `inner` is reached through `gate`, and a user with a configuration."""

    def __init__(self, gate: Sshd, inner: Sshd, folder: Path):
        self.gate, self.inner, self.folder = gate, inner, folder
        self.known = folder / "known_hosts"

    def host(self, name: str, sshd: Sshd, *lines: str) -> str:
        """A Host block."""
        known = (f"HostName 127.0.0.1\nPort {sshd.port}\nUser {sshd.user}", f"IdentityFile {sshd.user_key}", *lines)
        return f"Host {name}\n" + "\n".join(known) + "\n"

    def connection(self, ssh_config: str, known_hosts: str | None = None, **host: Any) -> SshConnection:
        """To what `host` says, with this configuration."""
        file = self.folder / "ssh_config"
        file.write_text(ssh_config)
        hosts = [{"host": "inner", "agent": False} | host]
        section = ssh_section([self.gate, self.inner], self.known, hosts=hosts, ssh_config=str(file))
        if known_hosts is not None:
            self.known.write_text(known_hosts)
        config = SshServiceConfig.model_validate(section)
        return SshConnection(config.hosts[0], config)

    def arrive(self, connection: SshConnection) -> tuple[bool, bool]:
        """Whether it leads to `inner`, and whether through the gate."""
        connection.connect()
        try:
            home = connection.run(["printenv", "HOME"]).stdout.decode().strip()
            return home == str(self.inner.home), bool(self.gate.connections())
        finally:
            connection.close()


@pytest.fixture(scope="module")
def sshds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Sshd, Sshd]]:
    folder = tmp_path_factory.mktemp("net")
    with start_sshd(folder / "gate") as gate, start_sshd(folder / "inner") as inner:
        yield gate, inner


@pytest.fixture
def net(sshds: tuple[Sshd, Sshd], tmp_path: Path) -> Iterator[Net]:
    gate, inner = sshds
    yield Net(gate, inner, tmp_path)
    gate.wait_until_left()
    inner.wait_until_left()


def test_an_alias_and_its_jump_are_followed(net):
    config = net.host("inner", net.inner, "ProxyJump gate") + net.host("gate", net.gate)
    assert net.arrive(net.connection(config)) == (True, True)


def test_the_address_is_that_of_the_host_or_its_name_behind_a_jump(net):
    here = net.host("gate", net.gate) + net.host("inner", net.inner).replace("HostName 127.0.0.1", "HostName localhost")
    known = net.gate.known_hosts_line() + net.inner.known_hosts_line().replace("[127.0.0.1]", "[localhost]")
    direct, behind = net.connection(here, known_hosts=known), net.connection(here, known_hosts=known, proxy_jump="gate")
    assert (net.arrive(direct), direct.address) == ((True, False), "127.0.0.1")
    assert (net.arrive(behind), behind.address) == ((True, True), "localhost")


def test_the_configs_own_jump_goes_before_and_none_is_a_jump_too_few(net):
    config = net.host("inner", net.inner, "ProxyJump nowhere") + net.host("gate", net.gate)
    assert net.arrive(net.connection(config, proxy_jump="gate")) == (True, True)
    assert net.arrive(net.connection(config, proxy_jump="none")) == (True, False)


def test_a_jump_may_have_a_jump_and_a_chain_is_walked_in_its_order(net):
    gate = net.host("gate", net.gate)
    jumps = gate + net.host("middle", net.inner, "ProxyJump gate") + net.host("inner", net.inner)
    assert net.arrive(net.connection(jumps, proxy_jump="middle")) == (True, True)
    assert net.arrive(net.connection(jumps, proxy_jump="gate,middle")) == (True, True)


def test_a_jump_without_a_key_of_its_own_takes_the_hosts(net):
    """Here `inner`'s key, which the gate does not let in."""
    config = f"Host gate\nHostName 127.0.0.1\nPort {net.gate.port}\nUser {net.gate.user}\n" + net.host(
        "inner", net.inner
    )
    connection = net.connection(config, proxy_jump="gate", key_file=str(net.inner.user_key))
    with pytest.raises(
        Refused, match=rf"^training_service.hosts: 'inner': proxy_jump 'gate': .* {net.inner.user_key};"
    ):
        connection.connect()
    assert net.arrive(net.connection(config, proxy_jump="gate", key_file=str(both_accept(net)))) == (True, True)


def both_accept(net: Net) -> Path:
    key = make_key(net.folder / "shared")
    for sshd in (net.gate, net.inner):
        with (sshd.folder / "authorized_keys").open("a") as file:
            file.write(public_key(key))
    return key


def test_the_key_of_a_jump_is_checked_too(net):
    config = net.host("inner", net.inner, "ProxyJump gate") + net.host("gate", net.gate)
    with pytest.raises(Refused) as caught:
        net.connection(config, known_hosts=net.inner.known_hosts_line()).connect()
    place = f"training_service.hosts: 'inner': proxy_jump 'gate': 127.0.0.1 port {net.gate.port} is not in {net.known};"
    assert str(caught.value).startswith(place)
    assert str(caught.value).endswith(f"ssh-keyscan -p {net.gate.port} 127.0.0.1 >> {net.known}")


def test_the_key_of_a_host_behind_a_jump_can_be_added_by_hand(net):
    """ssh-keyscan does not reach it from here."""
    config = net.host("inner", net.inner, "ProxyJump gate") + net.host("gate", net.gate)
    connection = net.connection(config, known_hosts=net.gate.known_hosts_line())
    with pytest.raises(Refused) as caught:
        connection.connect()
    _, _, remedy = str(caught.value).partition("add it with: ")
    subprocess.run(["sh", "-c", remedy], check=True)
    assert net.arrive(connection) == (True, True)


def test_a_jump_that_is_down_and_a_host_that_is_down_behind_it(net):
    config = net.host("inner", net.inner, "ProxyJump gate") + net.host("gate", net.gate)
    connection = net.connection(config)
    net.inner.stop()
    with pytest.raises(Unreachable) as caught:
        connection.connect()
    net.inner.start()
    assert str(caught.value) == (
        f"training_service.hosts: 'inner': 127.0.0.1 port {net.inner.port} can't be reached from the machine before "
        "it: Connect failed"
    )
    net.gate.stop()
    with pytest.raises(Unreachable) as caught:
        connection.connect()
    net.gate.start()
    assert str(caught.value) == (
        f"training_service.hosts: 'inner': proxy_jump 'gate': 127.0.0.1 port {net.gate.port} refuses connections; "
        "check the port, and that sshd runs there"
    )
    assert net.arrive(connection) == (True, True)


@pytest.mark.parametrize(
    ("jump", "sentence"),
    [
        ("a@b@c", "proxy_jump 'a@b@c': write it as [user@]host[:port]"),
        ("round", "proxy_jump 'about': the ProxyJumps of {file} lead in a circle"),
    ],
    ids=["form", "circle"],
)
def test_jumps_that_make_no_sense(net, jump, sentence):
    config = "Host round\nProxyJump about\nHost about\nProxyJump round\n"
    with pytest.raises(ServiceError) as caught:
        net.connection(config, proxy_jump=jump).connect()
    assert type(caught.value) is ServiceError
    assert str(caught.value) == f"training_service.hosts: 'inner': {sentence.format(file=net.folder / 'ssh_config')}"


def test_a_proxy_command_takes_the_place_of_a_connection(net):
    relay = net.folder / "relay.py"
    relay.write_text(
        "import socket, sys, threading, os\n"
        "there = socket.create_connection((sys.argv[1], int(sys.argv[2])))\n"
        "def up():\n"
        "    while data := os.read(0, 65536): there.sendall(data)\n"
        "    there.shutdown(socket.SHUT_WR)\n"
        "threading.Thread(target=up, daemon=True).start()\n"
        "while data := there.recv(65536): os.write(1, data)\n"
    )
    lead = f"ProxyCommand {sys.executable} {relay} %h %p"
    assert net.arrive(net.connection(net.host("inner", net.inner, lead))) == (True, False)
    with pytest.raises(Unreachable, match=r"its ProxyCommand 'exit 3' does not lead to an sshd: "):
        net.connection(net.host("inner", net.inner, "ProxyCommand exit 3")).connect()


def test_includes_and_hashed_and_additional_known_hosts(net):
    (net.folder / "inner.conf").write_text(
        net.host("inner", net.inner, f"UserKnownHostsFile {net.folder}/mine /no/file")
    )
    name, kind, key = net.inner.known_hosts_line().split()
    (net.folder / "mine").write_text(f"{HostKeys.hash_host(name)} {kind} {key}\n")
    assert net.arrive(net.connection("Include *.conf\n", known_hosts="")) == (True, False)


def test_a_configuration_that_can_t_be_understood(net):
    with pytest.raises(ServiceError) as caught:
        net.connection("Host inner\n=\n").connect()
    assert str(caught.value) == (
        f"training_service.hosts: 'inner': the OpenSSH configuration {net.folder}/ssh_config can't be understood: "
        "Unparsable line =; mend it, or name another file in training_service.ssh_config"
    )


def test_a_passphrase_from_the_environment_opens_a_key(net, monkeypatch):
    key = make_key(net.folder / "locked", PASSPHRASE)
    (net.inner.folder / "authorized_keys").write_text(public_key(net.inner.user_key) + public_key(key))
    config = f"Host inner\nHostName 127.0.0.1\nPort {net.inner.port}\nUser {net.inner.user}\n"
    connection = net.connection(config, key_file=str(key), passphrase={"env": "NASFLOW_TEST_PASSPHRASE"})
    monkeypatch.setenv("NASFLOW_TEST_PASSPHRASE", PASSPHRASE)
    assert net.arrive(connection) == (True, False)


def test_an_agent_has_a_key_open(net, monkeypatch):
    key = make_key(net.folder / "locked", PASSPHRASE)
    (net.inner.folder / "authorized_keys").write_text(public_key(net.inner.user_key) + public_key(key))
    config = f"Host inner\nHostName 127.0.0.1\nPort {net.inner.port}\nUser {net.inner.user}\n"
    ask = net.folder / "ask"
    ask.write_text(f"#!/bin/sh\necho {PASSPHRASE}\n")
    ask.chmod(0o700)
    socket = net.folder / "agent"
    agent = subprocess.Popen(
        [shutil.which("ssh-agent") or "ssh-agent", "-D", "-a", str(socket)], stdout=subprocess.DEVNULL
    )
    try:
        env = os.environ | {"SSH_AUTH_SOCK": str(socket), "SSH_ASKPASS": str(ask), "SSH_ASKPASS_REQUIRE": "force"}
        add = ["ssh-add", "-q", str(key)]
        while subprocess.run(add, env=env, capture_output=True, check=False).returncode == 2:  # it is not up yet
            assert agent.poll() is None
        monkeypatch.setenv("SSH_AUTH_SOCK", str(socket))
        assert net.arrive(net.connection(config, key_file=str(key), agent=True)) == (True, False)
        with pytest.raises(
            Refused, match=r"is encrypted; add 'passphrase: \{env: NAME\}', or load it into an ssh-agent$"
        ):
            net.connection(config, key_file=str(key), agent=False).connect()
    finally:
        agent.terminate()
        agent.wait()


@pytest.mark.parametrize(
    ("options", "config", "key"),
    [
        ({"known_hosts": "~nobodyhere/known"}, "", "training_service.known_hosts"),
        ({"ssh_config": "~nobodyhere/config"}, "", "training_service.ssh_config"),
        (
            {"hosts": [{"host": "inner", "key_file": "~nobodyhere/key"}]},
            "",
            "training_service.hosts: 'inner': key_file",
        ),
        ({}, "Host inner\nUserKnownHostsFile ~nobodyhere/known\n", "UserKnownHostsFile in"),
        ({}, "Include ~nobodyhere/config\n", "Include in"),
    ],
    ids=str,
)
def test_homes_of_nobody(tmp_path: Path, options: dict[str, Any], config: str, key: str) -> None:
    (tmp_path / "config").write_text(config)
    section = {"hosts": [{"host": "inner"}], "ssh_config": str(tmp_path / "config"), **options}
    service = SshServiceConfig.model_validate(section)
    with pytest.raises(
        ServiceError, match=r"'~nobodyhere/\w+': there is no home of that user here; write the path out"
    ):
        find_route(service.hosts[0], service)
    with pytest.raises(ServiceError, match=re.escape(key)):
        find_route(service.hosts[0], service)
