"""The table of messages: what a user reads when a host can't be used, word for word, and that nothing stays there."""

import os
import pwd
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from paramiko import Ed25519Key

from nasflow.config.services.ssh import SshServiceConfig
from nasflow.errors import ConfigError, ServiceError, UserError
from nasflow.training_service.ssh.connect.connection import SshConnection
from nasflow.training_service.ssh.connect.errors import Refused, Unreachable
from nasflow.training_service.ssh.probe import NEEDED, probe, problems, refuse
from tests.sshd import (
    Sshd,
    fake_program,
    free_port,
    make_key,
    public_key,
    ssh_section,
    start_sshd,
    without_site_packages,
)

PIP = " ".join(f"{name}=={metadata.version(name).partition('+')[0]}" for name in NEEDED)


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    with start_sshd(tmp_path_factory.mktemp("host")) as host:
        yield host


@dataclass
class Case:
    """A host and a folder for what a test makes."""

    host: Sshd
    folder: Path

    @property
    def known(self) -> Path:
        return self.folder / "known_hosts"

    def key(self, passphrase: str = "") -> Path:
        return make_key(self.folder / "key", passphrase)

    def fingerprint(self, private: Path) -> str:
        return Ed25519Key(filename=str(private)).fingerprint

    def config(self, options: dict[str, Any], **service: Any) -> SshServiceConfig:
        section = ssh_section([self.host], self.known, hosts=[self.host.config_host(**options)], **service)
        return SshServiceConfig.model_validate(section)


@pytest.fixture
def case(host: Sshd, tmp_path: Path) -> Iterator[Case]:
    yield Case(host, tmp_path)
    host.wait_until_left()
    assert not (host.folder / "work").exists()


def told(config: SshServiceConfig) -> UserError:
    """What is raised when a search begins that shall use the config's host."""
    connection = SshConnection(config.hosts[0], config)
    with pytest.raises(UserError) as caught:
        connection.connect()
        refuse(probe(connection, config.hosts[0]), config.hosts[0], config)
    connection.close()
    return caught.value


# --- the way there: a config, and the sentence after the host's place in it -------------------------------------------


def unknown_host(case: Case) -> tuple[SshServiceConfig, str]:
    config = case.config({})
    case.known.write_text(f"elsewhere {public_key(case.host.host_key)}")
    return config, (
        f"127.0.0.1 port {case.host.port} is not in {case.known}; if its ssh-ed25519 key is "
        f"{case.fingerprint(case.host.host_key)}, add it with: "
        f"ssh-keyscan -p {case.host.port} 127.0.0.1 >> {case.known}"
    )


def no_known_hosts(case: Case) -> tuple[SshServiceConfig, str]:
    config, text = unknown_host(case)
    case.known.unlink()
    return config, text


def changed_host_key(case: Case) -> tuple[SshServiceConfig, str]:
    config = case.config({})
    before = case.key()
    case.known.write_text(f"[127.0.0.1]:{case.host.port} {public_key(before)}")
    return config, (
        f"the key of 127.0.0.1 port {case.host.port} has changed: it is ssh-ed25519 "
        f"{case.fingerprint(case.host.host_key)}, {case.known} has ssh-ed25519 {case.fingerprint(before)}; "
        "someone may be in between, or it was installed anew: then forget the old key with: "
        f"ssh-keygen -R '[127.0.0.1]:{case.host.port}' -f {case.known}"
    )


def wrong_key(case: Case) -> tuple[SshServiceConfig, str]:
    key, who = case.key(), f"{case.host.user}@127.0.0.1"
    return case.config({"key_file": str(key)}), (
        f"{who} does not accept {key}; check 'user', and let the key in there with: "
        f"ssh-copy-id -i {key} -p {case.host.port} {who}"
    )


def no_key(case: Case) -> tuple[SshServiceConfig, str]:
    empty = case.folder / "ssh_config"
    empty.write_text(f"IdentityFile {case.folder}/nothing\n")
    return case.config({"key_file": None}, ssh_config=str(empty)), (
        "there is no key to log in with; set key_file or password there, or load a key into an ssh-agent"
    )


def password(case: Case) -> tuple[SshServiceConfig, str]:
    empty = case.folder / "ssh_config"
    empty.write_text(f"IdentityFile {case.folder}/nothing\n")
    options = {"key_file": None, "password": "hunter2"}
    return case.config(options, ssh_config=str(empty)), (
        f"{case.host.user}@127.0.0.1 takes no password, but publickey; set key_file in its place"
    )


def no_passphrase(case: Case) -> tuple[SshServiceConfig, str]:
    key = case.key("open sesame")
    return case.config({"key_file": str(key)}), (
        f"the key {key} is encrypted; add 'passphrase: {{env: NAME}}', or load it into an ssh-agent"
    )


def wrong_passphrase(case: Case) -> tuple[SshServiceConfig, str]:
    key = case.key("open sesame")
    return case.config({"key_file": str(key), "passphrase": "hunter2"}), (
        f"the passphrase does not open the key {key}; check what 'passphrase' refers to"
    )


def unset_passphrase(case: Case) -> tuple[SshServiceConfig, str]:
    key = case.key("open sesame")
    return case.config({"key_file": str(key), "passphrase": {"env": "NASFLOW_TEST_UNSET"}}), (
        "passphrase: the environment variable NASFLOW_TEST_UNSET is not set"
    )


def missing_key(case: Case) -> tuple[SshServiceConfig, str]:
    return case.config({"key_file": "/no/such/key"}), "there is no key file /no/such/key; mend key_file"


def public_half(case: Case) -> tuple[SshServiceConfig, str]:
    file = f"{case.host.user_key}.pub"
    return case.config({"key_file": file}), f"{file} is no private key; name the file without '.pub' in key_file"


def refused_port(case: Case) -> tuple[SshServiceConfig, str]:
    port = free_port()
    return case.config({"port": port}), (
        f"127.0.0.1 port {port} refuses connections; check the port, and that sshd runs there"
    )


def no_such_name(case: Case) -> tuple[SshServiceConfig, str]:
    return case.config({"host": "no-such-host.invalid"}), (
        "the name 'no-such-host.invalid' can't be resolved (Name or service not known); check how it is written, "
        "and the network"
    )


CONNECTING: list[tuple[Callable[[Case], tuple[SshServiceConfig, str]], type[UserError]]] = [
    (unknown_host, ServiceError),
    (no_known_hosts, ServiceError),
    (changed_host_key, ServiceError),
    (wrong_key, Refused),
    (no_key, ServiceError),
    (password, Refused),
    (no_passphrase, ServiceError),
    (wrong_passphrase, ServiceError),
    (unset_passphrase, ConfigError),
    (missing_key, ServiceError),
    (public_half, ServiceError),
    (refused_port, Unreachable),
    (no_such_name, Unreachable),
]


@pytest.mark.parametrize(("prepare", "kind"), CONNECTING, ids=lambda part: part.__name__)
def test_what_is_said_of_a_connection_that_can_t_be_made(case, prepare, kind):
    config, sentence = prepare(case)
    error = told(config)
    assert type(error) is kind
    assert str(error) == f"training_service.hosts: '{config.hosts[0].name}': {sentence}"


def test_what_is_said_of_a_host_that_gives_no_answer(case):
    config = case.config({}, connect_timeout=0.5)
    case.host.pause()
    try:
        error = told(config)
    finally:
        case.host.resume()
    assert type(error) is Unreachable
    assert str(error) == (
        f"training_service.hosts: '127.0.0.1:{case.host.port}': 127.0.0.1 port {case.host.port} gives no answer within "
        "0.5 s; check the address, and what is in between (firewall, VPN), or raise training_service.connect_timeout"
    )


# --- the host itself -------------------------------------------------------------------------------------------------


def said(case: Case, options: dict[str, Any], **service: Any) -> str:
    config = case.config(options, **service)
    error = told(config)
    assert type(error) is ServiceError
    return str(error).removeprefix(f"training_service.hosts: '{config.hosts[0].name}': ")


def test_a_host_in_order_has_no_problems(case):
    config = case.config({"work_dir": "~/a/b"})
    connection = SshConnection(config.hosts[0], config)
    connection.connect()
    report = probe(connection, config.hosts[0])
    connection.close()
    assert problems(report, config.hosts[0], config) == []
    assert report.work_dir == str(case.host.home / "a" / "b")
    assert list(case.host.home.iterdir()) == []
    assert report.versions["torch"] == metadata.version("torch")
    assert abs(report.clock_offset) <= report.clock_error  # this machine's own clock
    assert report.user == case.host.user


def shell_says(case: Case, command: str) -> str:
    """The last line of what the login shell there says of a command that fails; shells differ."""
    shell = pwd.getpwnam(case.host.user).pw_shell
    done = subprocess.run([shell, "-c", command], capture_output=True, text=True, check=False)
    return done.stderr.replace(shell, Path(shell).name).strip().splitlines()[-1]


def test_no_python(case):
    shell = shell_says(case, "exec no-such-python")
    assert said(case, {"python": "no-such-python"}) == (
        f"'no-such-python' can't be started ({shell}); install Python 3.11 or newer there, or name its path in 'python'"
    )


@pytest.mark.parametrize("program", ["", "/no/such/sftp-server"], ids=["none", "missing"])
def test_no_sftp(tmp_path, program):
    with start_sshd(tmp_path / "host", sftp=program) as host:
        sentence = said(Case(host, tmp_path), {})
    why = "EOF during negotiation" if program else "Channel closed."
    assert sentence == (
        f"its sshd starts no sftp ({why}); have 'Subsystem sftp internal-sftp' in the sshd_config there"
    )


def test_a_python_that_is_too_old(case):
    old = "import sys, platform; sys.version_info = (3, 8, 10); platform.python_version = lambda: '3.8.10'"
    program = f'#!/bin/sh\nshift\nexec {sys.executable} -c "{old}; exec(sys.stdin.read())" "$@"\n'
    python = fake_program(case.folder, "old-python", program)
    assert said(case, {"python": str(python)}) == (
        f"'{python}' is Python 3.8.10; nasflow needs 3.11 or newer: name one in 'python'"
    )


def test_an_environment_that_can_t_be_set_up(case):
    setup = "echo hello; . /no/such/venv"
    shell = shell_says(case, f"{{ {setup}\n}}")
    assert said(case, {"env_setup": setup}) == (
        f"'{sys.executable}' can't be started after 'env_setup' ({shell}); try both in a shell there"
    )


def test_no_torch(case):
    bare = without_site_packages(case.folder)
    assert said(case, {"python": str(bare)}) == (
        f"{sys.executable} has no {', '.join(NEEDED)}; install there: {sys.executable} -m pip install {PIP}"
    )


def test_a_work_dir_that_can_t_be_made(case):
    (case.folder / "file").touch()
    assert said(case, {"work_dir": str(case.folder / "file" / "work")}) == (
        f"work_dir {case.folder}/file/work can't be written (Not a directory); name a folder that {case.host.user} may "
        "write"
    )


def on_a_disk(case: Case, options: str) -> tuple[Path, Path]:
    """A Python before whose eyes a tmpfs is mounted, and where; in `left` beside it stands what it left there.

    As root of a mount namespace of its own, which no one else sees.
    """
    enter = ["unshare", *([] if os.geteuid() == 0 else ["--map-root-user"]), "--mount"]
    if subprocess.run([*enter, "true"], check=False, capture_output=True).returncode != 0:
        pytest.skip("this machine lets no one have a mount namespace")
    disk = case.folder / "disk"
    disk.mkdir()
    fill = "true" if options == "ro" else f"head -c 1M /dev/zero > {disk}/filler"
    run = f'{sys.executable} "$@"; ls -a {disk} > {disk}/../left'
    inside = ["sh", "-c", f"mount -t tmpfs -o {options} tmpfs {disk} && {fill} && {run}"]
    script = f'#!/bin/sh\nexec {shlex.join([*enter, *inside])} sh "$@"\n'
    return fake_program(case.folder, "python", script), disk


def test_a_work_dir_that_can_t_be_written(case):
    python, disk = on_a_disk(case, "ro")
    assert said(case, {"python": str(python), "work_dir": f"{disk}/work"}) == (
        f"work_dir {disk}/work can't be written (Read-only file system); name a folder that root may write"
    )


def test_a_full_disk(case):
    python, disk = on_a_disk(case, "size=1m")
    assert said(case, {"python": str(python), "work_dir": f"{disk}/a/work"}) == (
        f"the disk of work_dir {disk}/a/work is full (0 MB free, 200 MB needed); make room there, or name a folder on "
        "another disk"
    )
    assert (case.folder / "left").read_text().split() == [".", "..", "filler"]


def test_another_nasflow(case, tmp_path_factory):
    other = tmp_path_factory.mktemp("other") / "nasflow-0.0.7.dist-info"
    other.mkdir()
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: nasflow\nVersion: 0.0.7\n")
    ours = metadata.version("nasflow")
    remedy = (
        f"install there: {sys.executable} -m pip install nasflow=={ours}, or set training_service.nasflow to 'ship'"
    )
    options = {"env_setup": f"export PYTHONPATH={other.parent}"}
    assert said(case, options, nasflow="installed") == (f"nasflow 0.0.7 is installed there, and {ours} here; {remedy}")


def test_a_gpu_that_is_not_there(case):
    assert said(case, {"gpu_indices": [0, 2]}) == (
        "gpu_indices names GPU 0, but it has none; name others, or set 'slots' to train on the CPU"
    )
