"""The way to a host as the user's OpenSSH client configuration says it, and what opens the door there."""

import contextlib
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
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
    with pytest.raises(ServiceError) as caught:
        net.connection(config, known_hosts=net.inner.known_hosts_line()).connect()
    place = f"training_service.hosts: 'inner': proxy_jump 'gate': 127.0.0.1 port {net.gate.port} is not in {net.known};"
    assert str(caught.value).startswith(place)
    assert str(caught.value).endswith(f"ssh-keyscan -p {net.gate.port} 127.0.0.1 >> {net.known}")


def test_the_key_of_a_host_behind_a_jump_can_be_added_by_hand(net):
    """ssh-keyscan does not reach it from here."""
    config = net.host("inner", net.inner, "ProxyJump gate") + net.host("gate", net.gate)
    connection = net.connection(config, known_hosts=net.gate.known_hosts_line())
    with pytest.raises(ServiceError) as caught:
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
        ("a@b:c:d", "proxy_jump 'a@b:c:d': write it as [user@]host[:port]"),
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


def test_a_proxy_command_that_ignores_signals_is_ended(net):
    connection = net.connection(net.host("inner", net.inner, """ProxyCommand sh -c "trap '' TERM; exec sleep 300" """))
    connection._timeout = 0.5
    with pytest.raises(Unreachable, match=r"gives no answer within 0.5 s"):
        connection.connect()


def test_includes_and_hashed_and_additional_known_hosts(net):
    (net.folder / "inner.conf").write_text(
        net.host("inner", net.inner, f"UserKnownHostsFile {net.folder}/mine /no/file")
    )
    name, kind, key = net.inner.known_hosts_line().split()
    (net.folder / "mine").write_text(f"{HostKeys.hash_host(name)} {kind} {key}\n")
    assert net.arrive(net.connection("Include *.conf\n", known_hosts="")) == (True, False)


def test_lines_of_known_hosts_that_are_not_of_this_host_do_not_matter(net, caplog):
    """Neither those of certificates, which are not used here, nor damaged ones; each of these is named once."""
    key = public_key(net.gate.host_key).strip()
    lines = [
        f"@cert-authority\t*.example.com {key}",
        "elsewhere ssh-ed25519 AAAAC3NzaC1lZDI1NTE5",
        "elsewhere ssh-rsa AAAAB3NzaC1yc2E=",
        "elsewhere  ssh-ed25519  x",
        "# M\u00fcller",
        "",
        f"@revoked * {key}",
        net.inner.known_hosts_line(),
    ]
    text = "\n".join(lines)
    for _ in range(2):
        assert net.arrive(net.connection(net.host("inner", net.inner), known_hosts=text)) == (True, False)
    skipped = [record.message.partition(", because")[0] for record in caplog.records]
    assert skipped == [f"{net.known}: line {number} is skipped" for number in (2, 3, 4)]


@pytest.mark.parametrize("also_known", [True, False])
def test_a_revoked_key_of_a_host_is_refused(net, also_known):
    key = public_key(net.inner.host_key)
    known = f"@revoked * {key}{net.inner.known_hosts_line() if also_known else ''}"
    with pytest.raises(
        ServiceError, match=rf"'inner': the ssh-ed25519 key .* is revoked in {net.known}; someone may use"
    ):
        net.connection(net.host("inner", net.inner), known_hosts=known).connect()


def test_a_certificate_authority_makes_no_host_known(net):
    known = f"@cert-authority * {public_key(net.inner.host_key)}"
    with pytest.raises(ServiceError, match=r"is not in .*known_hosts; if its"):
        net.connection(net.host("inner", net.inner), known_hosts=known).connect()


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


@contextlib.contextmanager
def agent_with(folder: Path, *keys: Path) -> Iterator[Path]:
    """The socket of an ssh-agent that has these keys open."""
    ask = folder / "ask"
    ask.write_text(f"#!/bin/sh\necho {PASSPHRASE}\n")
    ask.chmod(0o700)
    place = folder / "agent"
    agent = subprocess.Popen(
        [shutil.which("ssh-agent") or "ssh-agent", "-D", "-a", str(place)], stdout=subprocess.DEVNULL
    )
    try:
        env = os.environ | {"SSH_AUTH_SOCK": str(place), "SSH_ASKPASS": str(ask), "SSH_ASKPASS_REQUIRE": "force"}
        add = ["ssh-add", "-q", *map(str, keys)]
        while subprocess.run(add, env=env, capture_output=True, check=False).returncode == 2:  # it is not up yet
            assert agent.poll() is None
        yield place
    finally:
        agent.terminate()
        agent.wait()


def test_an_agent_has_a_key_open(net, monkeypatch):
    key = make_key(net.folder / "locked", PASSPHRASE)
    (net.inner.folder / "authorized_keys").write_text(public_key(net.inner.user_key) + public_key(key))
    config = f"Host inner\nHostName 127.0.0.1\nPort {net.inner.port}\nUser {net.inner.user}\n"
    with agent_with(net.folder, key) as place:
        monkeypatch.setenv("SSH_AUTH_SOCK", str(place))
        assert net.arrive(net.connection(config, key_file=str(key), agent=True)) == (True, False)
        with pytest.raises(
            ServiceError, match=r"is encrypted; add 'passphrase: \{env: NAME\}', or load it into an ssh-agent$"
        ):
            net.connection(config, key_file=str(key), agent=False).connect()


@pytest.mark.parametrize(
    ("end", "only"), [("", "yes"), (".pub", "yes"), (".pub", "no")], ids=["only", "half, only", "first"]
)
def test_the_named_keys_of_an_agent_are_offered_before_its_others(net, monkeypatch, end, only):
    """With IdentitiesOnly no other is. Servers disconnect after a few. Only half of a key need be here."""
    key, *others = make_key(net.folder / "locked", PASSPHRASE), *(make_key(net.folder / f"other-{k}") for k in range(6))
    (net.inner.folder / "authorized_keys").write_text(public_key(net.inner.user_key) + public_key(key))
    config = (
        f"Host inner\nHostName 127.0.0.1\nPort {net.inner.port}\nUser {net.inner.user}\n"
        f"IdentityFile {key}{end}\nIdentitiesOnly {only}\n"
    )
    with agent_with(net.folder, *others, key) as place:
        monkeypatch.setenv("SSH_AUTH_SOCK", str(place))
        assert net.arrive(net.connection(config, agent=True)) == (True, False)


def test_the_public_half_of_a_key_without_an_agent_is_no_key(net, monkeypatch):
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    config = net.host("inner", net.inner).replace(str(net.inner.user_key), f"{net.inner.user_key}.pub")
    with pytest.raises(ServiceError, match=r"'inner': there is no key to log in with; "):
        net.connection(config, agent=True).connect()


def close_when_asked(server: socket.socket) -> None:
    for _ in range(2):
        with server.accept()[0] as asked:
            asked.recv(100)


@pytest.mark.parametrize("hangs", [True, False], ids=["hangs", "lost"])
def test_an_agent_that_is_of_no_use_hides_no_key(net, monkeypatch, caplog, hangs):
    place = net.folder / "agent"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(place))
        server.listen()
        if not hangs:
            threading.Thread(target=close_when_asked, args=[server], daemon=True).start()
        monkeypatch.setenv("SSH_AUTH_SOCK", str(place))
        for _ in range(2):
            connection = net.connection(net.host("inner", net.inner), agent=True)
            connection._timeout = 2.0
            assert net.arrive(connection) == (True, False)
    (said,) = [record.message for record in caplog.records]
    why = "no answer within 2 s" if hangs else "lost ssh-agent"
    assert said == (f"the ssh-agent is of no use ({why}): its keys are not offered; restart it, or set 'agent: false'")


def test_a_user_of_a_jump_may_have_an_at_in_the_name(tmp_path):
    section = {"hosts": [{"host": "inner", "proxy_jump": "ada@corp.com@gate:2222"}], "ssh_config": os.devnull}
    service = SshServiceConfig.model_validate(section | {"known_hosts": str(tmp_path / "known")})
    gate, _ = find_route(service.hosts[0], service)
    assert (gate.user, gate.host, gate.port) == ("ada@corp.com", "gate", 2222)


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
