"""The controller's side of an agent, with programs on a real host that are no honest agent, or a slow one."""

import json
import os
import sys
import time
from collections.abc import Callable, Iterator

import pytest

from nasflow.config.services.ssh import SshServiceConfig
from nasflow.errors import ServiceError
from nasflow.training_service.ssh import agent_client
from nasflow.training_service.ssh.agent import GREETING
from nasflow.training_service.ssh.agent_client import AgentClient
from nasflow.training_service.ssh.connect.connection import SshConnection
from nasflow.training_service.ssh.connect.errors import Unreachable
from nasflow.training_service.ssh.messages import Listing
from tests.sshd import ssh_section, start_sshd

LIMIT = 1.0  # seconds
MEGABYTE = 10**6


@pytest.fixture(scope="module")
def connection(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshConnection]:
    folder = tmp_path_factory.mktemp("host")
    with start_sshd(folder) as host:
        config = SshServiceConfig.model_validate(ssh_section([host], folder / "known"))
        connection = SshConnection(config.hosts[0], config)
        connection.connect()
        yield connection
        connection.close()


@pytest.fixture
def start(connection: SshConnection) -> Callable[[str], AgentClient]:
    """Starts a Python program as the agent, which has `LIMIT` seconds for an answer."""
    return lambda program: AgentClient(connection, [sys.executable, "-c", program], "there", LIMIT)


@pytest.mark.timeout(60)  # not as long as there is output
@pytest.mark.parametrize("said", [b"no agent\n", b"\xff\n"], ids=["text", "no text"])
def test_a_start_ends_at_its_limit_however_much_is_printed(said, start, monkeypatch):
    monkeypatch.setattr(agent_client, "_STARTS_WITHIN", LIMIT)
    with pytest.raises(Unreachable, match="there does not answer"):
        start(f"import os\nwhile True: os.write(1, {said * 10_000!r})")


@pytest.mark.timeout(60)
def test_a_line_that_does_not_end_is_not_collected(start, monkeypatch):
    monkeypatch.setattr(agent_client, "LONGEST", MEGABYTE)
    with pytest.raises(ServiceError, match="'there': its answer is longer than 1 MB"):
        start("import os\nwhile True: os.write(1, b'0' * 10_000)")


def test_output_of_the_login_shell_may_lack_its_last_newline(start):
    client = start(f"""
print("Welcome!\\nhost", end="")
print({GREETING!r}, flush=True)
input()
print('{{"result": "done"}}', flush=True)
""")
    assert client.call("poll") == "done"


def test_an_answer_that_is_none_is_an_error_of_the_host(start):
    client = start(f"print({GREETING!r}, flush=True); input(); print('[1', flush=True)")
    with pytest.raises(ServiceError, match=r"'there': its answer can't be read"):
        client.call("poll")


def test_the_time_for_an_answer_begins_when_the_call_is_sent(start):
    """The link is slow but for what fits into its buffers: sending the call takes longer than an answer may take."""
    client = start(f"""
import os, time
print({GREETING!r}, flush=True)
got = 0
while (data := os.read(0, {MEGABYTE})) and not data.endswith(b"\\n"):
    got += len(data)
    time.sleep(0.02 if got < 7 * {MEGABYTE} else 0)
print('{{"result": "done"}}', flush=True)
""")
    began = time.monotonic()
    assert client.call("list", Listing(paths=["p" * 10 * MEGABYTE])) == "done"
    assert time.monotonic() - began > LIMIT


def test_text_is_utf_8_whatever_the_encoding_of_the_host(connection, tmp_path):
    program = ["env", "PYTHONIOENCODING=latin-1", sys.executable, "-m", "nasflow.training_service.ssh.agent"]
    client = AgentClient(connection, [*program, str(tmp_path)], "there", timeout=20)
    with pytest.raises(ServiceError, match=r"path '../é → \\udce9' leads out of "):
        client.call("list", Listing(paths=["../é → \\udce9"]))
    (tmp_path / "trials").mkdir()
    for name in (b"\xe9", "é → ".encode()):
        (tmp_path / "trials" / os.fsdecode(name)).touch()
    assert [file["path"] for file in json.loads(client.call("list", Listing(paths=["trials"])))] == ["trials/é → "]
    client.leave()
