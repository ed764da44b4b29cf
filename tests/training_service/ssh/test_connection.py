"""Connections to real sshd programs: what works, what each thing that goes wrong says, and that nothing hangs."""

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nasflow.config.services.ssh import SshServiceConfig
from nasflow.training_service.ssh.connect.connection import Completed, SshConnection
from nasflow.training_service.ssh.connect.errors import Unreachable
from tests.sshd import Sshd, alive, fake_program, public_key, ssh_section, start_sshd

SHORT = 2.0  # seconds


@pytest.fixture(scope="module")
def near(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    """A host."""
    with start_sshd(tmp_path_factory.mktemp("hosts") / "near", COLOUR="deep blue") as host:
        yield host


def connect(sshds: list[Sshd], known_hosts: Path, **options: Any) -> SshConnection:
    """A connection to the first of the section's hosts."""
    section = ssh_section(sshds, known_hosts, **{"connect_timeout": 20.0} | options)
    config = SshServiceConfig.model_validate(section)
    connection = SshConnection(config.hosts[0], config)
    connection.connect()
    return connection


@pytest.fixture
def connection(near: Sshd, tmp_path: Path) -> Iterator[SshConnection]:
    made = connect([near], tmp_path / "known_hosts")
    yield made
    made.close()
    near.wait_until_left()


def until(condition: Any) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


# --- what works ------------------------------------------------------------------------------------------------------


def test_arguments_arrive_as_they_are(connection, near):
    odd = ["a b", "$HOME", "'", '"', "\n", "*", "", "--", "é", "a~/b"]
    done = connection.run([sys.executable, "-c", "import sys, json; print(json.dumps(sys.argv[1:]))", *odd])
    assert done.returncode == 0
    assert json.loads(done.stdout) == odd
    assert connection.run(["echo", "~/x y"]).stdout.decode() == f"{near.home}/x y\n"
    assert connection.run(["printenv", "COLOUR"]) == Completed(0, b"deep blue\n", b"")


def test_much_goes_through_all_three_streams_at_once(connection):
    program = "import sys; data = sys.stdin.buffer.read(); sys.stderr.buffer.write(data); sys.stdout.buffer.write(data)"
    data = os.urandom(1 << 20) * 5  # more than what may be under way unread
    assert connection.run([sys.executable, "-c", program], data, timeout=60) == Completed(0, data, data)
    assert connection.run(["true"], data).returncode == 0  # who reads nothing


def test_how_a_command_ended(connection):
    assert connection.run(["sh", "-c", "echo no >&2; exit 7"]) == Completed(7, b"", b"no\n")
    assert connection.run(["sh", "-c", "kill -9 $$"]).returncode == -1
    assert connection.run(["no-such-program"]).returncode == 127


def test_env_setup_comes_first_and_its_failure_is_the_commands(near, tmp_path):
    def run(setup: str) -> Completed:
        connection = connect([near], tmp_path / "known", hosts=[near.config_host(env_setup=setup)])
        try:
            return connection.run(["printenv", "X"])
        finally:
            connection.close()

    assert run("export X='1 2'\ncd / # a comment") == Completed(0, b"1 2\n", b"")
    failed = run("export X=1; . /no/such/file")
    assert (failed.returncode, failed.stdout) == (1, b"")
    assert b"/no/such/file" in failed.stderr


@pytest.mark.parametrize("shell", ["tcsh", "fish", "csh"])
def test_env_setup_where_the_login_shell_is_another(shell, tmp_path):
    """bash runs it. In place of a shell that is not installed, and always of csh, is one that refuses as these do."""
    program = shutil.which(shell)
    if program is None or shell == "csh":
        refuses = """case $2 in *'!'*|*"\n"*|"{"*) echo "Badly placed {" >&2; exit 1;; esac"""
        program = str(fake_program(tmp_path / "bin", shell, f'#!/bin/sh\n{refuses}\nexec /bin/sh "$@"\n'))
    setup = "export X='1 2!' && source /dev/null  # it's bash\ncd /"
    with start_sshd(tmp_path / "host", SHELL=program) as host:
        forced = f'command="exec {program} -c \\"$SSH_ORIGINAL_COMMAND\\""'
        (host.folder / "authorized_keys").write_text(f"{forced} {public_key(host.user_key)}")
        connection = connect([host], tmp_path / "known", hosts=[host.config_host(env_setup=setup)])
        try:
            odd = ["a b", "$HOME", "'", '"', "\n", "*", "!", "é", "\\0101"]
            done = connection.run([sys.executable, "-c", "import os, sys; print(os.environ['X'], sys.argv[1:])", *odd])
            assert (done.returncode, done.stdout.decode()) == (0, f"1 2! {odd}\n"), done.stderr
        finally:
            connection.close()


def test_files_and_what_is_wrong_with_them(connection, tmp_path):
    with connection.sftp() as sftp:
        sftp.mkdir(str(tmp_path / "made"))
    with pytest.raises(FileNotFoundError), connection.sftp() as sftp:
        sftp.stat(str(tmp_path / "missing"))
    with pytest.raises(OSError), connection.sftp() as sftp:
        sftp.mkdir(str(tmp_path / "made"))
    with connection.sftp() as sftp:
        assert "made" in sftp.listdir(str(tmp_path))


def test_a_program_is_spoken_with_until_its_input_ends(connection, near):
    channel = connection.open_channel_process(["cat"])
    for line in (b"one\n", b"two\n"):
        channel.sendall(line)
        assert channel.recv(100) == line
    assert [process.name() for process in near.started()] == ["cat"]
    (program,) = near.started()
    channel.close()
    until(lambda: not alive(program))


# --- what ends or stands still ---------------------------------------------------------------------------------------


def test_a_command_that_takes_too_long_is_given_up(connection, near):
    began = time.monotonic()
    with pytest.raises(Unreachable, match=r"'127.0.0.1:\d+': no answer within 0.5 s$"):
        connection.run(["sleep", "60"], timeout=0.5)
    assert time.monotonic() - began < 5
    assert connection.run(["echo", "on"]).stdout == b"on\n"
    for process in near.started():
        process.kill()  # a sleep does not read


def test_a_cut_network_is_no_answer_and_the_connection_works_again_afterwards(near, tmp_path):
    connection = connect([near], tmp_path / "known_hosts", connect_timeout=SHORT)
    with connection.sftp() as sftp:
        sftp.listdir(str(tmp_path))
    channel = connection.open_channel_process(["cat"])
    near.pause()
    try:
        began = time.monotonic()
        with pytest.raises(Unreachable, match=f"no answer within {SHORT:g} s$"), connection.sftp() as sftp:
            sftp.listdir(str(tmp_path))
        with pytest.raises(Unreachable, match=f"no answer within {SHORT:g} s$"), connection.sftp():
            pytest.fail("there is none")
        with pytest.raises(Unreachable, match=f"no answer within {SHORT:g} s$"):
            connection.run(["true"])
        assert time.monotonic() - began < 5 * SHORT
        channel.sendall(b"still there\n")
    finally:
        near.resume()
    channel.settimeout(60)
    assert channel.recv(100) == b"still there\n"  # silence for longer than an answer may take ends no program
    assert connection.run(["echo", "back"], timeout=20).stdout == b"back\n"
    with connection.sftp() as sftp:
        sftp.listdir(str(tmp_path))
    connection.close()
    near.wait_until_left()


def test_a_killed_connection_is_no_answer_and_can_be_made_anew(connection, near, tmp_path):
    with connection.sftp() as sftp:
        sftp.listdir(str(tmp_path))
    threading.Timer(0.3, near.kill_connections).start()
    with pytest.raises(Unreachable, match=r"the connection broke: closed by the host$"):
        connection.run(["sleep", "2"], timeout=20)
    with pytest.raises(Unreachable, match=r"the connection broke: Socket is closed$"), connection.sftp() as sftp:
        sftp.listdir(str(tmp_path))
    with pytest.raises(Unreachable, match=r"the connection is broken$"):
        connection.run(["true"])
    connection.connect()
    assert connection.run(["true"]).returncode == 0
    with connection.sftp() as sftp:
        sftp.listdir(str(tmp_path))


def test_paramiko_prints_nothing(near, tmp_path):
    """Its threads log whatever they raise, with a traceback, and Python prints what no one handles."""
    program = f"""
import sys
from nasflow.config.services.ssh import SshServiceConfig
from nasflow.training_service.ssh.connect.connection import SshConnection
from nasflow.errors import ServiceError
config = SshServiceConfig.model_validate({ssh_section([near], tmp_path / "known", connect_timeout=0.5)!r})
try:
    SshConnection(config.hosts[0], config).connect()
except ServiceError as error:
    print(error)
"""
    near.pause()
    try:
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    finally:
        near.resume()
    assert "gives no answer within 0.5 s" in done.stdout
    assert done.stderr == ""
