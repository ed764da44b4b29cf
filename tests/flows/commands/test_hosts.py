"""`nasflow hosts check` against real sshd programs."""

import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from tests.flows.forked_commands import run_forked
from tests.flows.searches import PrefectServer
from tests.sshd import Sshd, fake_program, free_port, make_key, public_key, ssh_section, start_sshd

SMI = """#!/bin/sh
case "$1" in
--query-gpu=index,name,memory.used,memory.total,uuid)
    echo "0, NVIDIA A100-SXM4-80GB, 1024 MiB, 81920 MiB, GPU-aaa"
    echo "1, NVIDIA A100-SXM4-80GB, 3 MiB, 81920 MiB, GPU-bbb" ;;
--query-compute-apps=gpu_uuid,pid,process_name)
    echo "GPU-bbb, @PID@, /opt/conda/bin/python3.12" ;;
*) echo "Field is not a valid field to query." ; exit 2 ;;
esac
"""
SEARCH = {
    "name": "anywhere",
    "space": {"target": "space.py:build"},
    "evaluator": {
        "kind": "classification",
        "data": {"target": "nasflow.evaluator.data:DigitsRows"},
        "epochs": 1,
        "optimizer": {"name": "adamw"},
    },
}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    """A host without a GPU."""
    with start_sshd(tmp_path_factory.mktemp("plain")) as host:
        yield host


@pytest.fixture(scope="module")
def with_gpus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    """A host with two, on one of which this process computes, as far as its nvidia-smi says."""
    folder = tmp_path_factory.mktemp("gpus")
    program = fake_program(folder / "bin", "nvidia-smi", SMI.replace("@PID@", str(os.getpid())))
    with start_sshd(folder / "host", path_prefix=[program.parent]) as host:
        yield host


_OF_PREFECT = re.compile(r"Still processing items: \d+ items remaining")  # as its queues end on a busy machine


@pytest.fixture(autouse=True)
def nothing_left(plain: Sshd, with_gpus: Sshd) -> Iterator[None]:
    yield
    for host in (plain, with_gpus):
        host.wait_until_left()
        assert list(host.home.iterdir()) == []
        assert not (host.folder / "work").exists()


def check(
    folder: Path, service: dict[str, Any], *options: str, code: int, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """The command in a folder, which ends with `code`."""
    (folder / "search.yaml").write_text(yaml.safe_dump(SEARCH | {"training_service": service}))
    done = run_forked(["nasflow", "hosts", "check", "search.yaml", *options], folder, env or os.environ, timeout=120)
    assert done.returncode == code, done.stdout + done.stderr
    said = [line for line in done.stderr.splitlines() if not _OF_PREFECT.match(line)]
    assert not said or code == 2, done.stderr
    assert "Traceback" not in done.stderr
    return done


def test_hosts_in_order_and_what_they_have(plain, with_gpus, tmp_path):
    service = ssh_section([plain, with_gpus], tmp_path / "known")
    output = check(tmp_path, service, code=0).stdout
    rows = [line for line in output.splitlines() if ":" in line]
    assert f"127.0.0.1:{plain.port}" in rows[0]
    assert rows[0].count(" yes ") == 2
    assert "none; CPU cores: " in rows[0]
    user = psutil.Process().username()
    assert "0: NVIDIA A100-SXM4-80GB, 1024 MiB of 81920 MiB: free" in output
    assert f"1: NVIDIA A100-SXM4-80GB, 3 MiB of 81920 MiB: python3.12 ({user}," in output
    assert "2 of 2 hosts can run jobs" in output
    assert "in step" in output


def test_what_is_wrong_stands_below_the_table_and_the_exit_code_is_2(plain, with_gpus, tmp_path):
    key = make_key(tmp_path / "key")
    (tmp_path / "file").touch()
    port = free_port()
    hosts = [
        with_gpus.config_host(),
        plain.config_host(key_file=str(key)),
        plain.config_host(port=port),
        with_gpus.config_host(host="localhost", work_dir=str(tmp_path / "file")),
    ]
    service = ssh_section([plain, with_gpus], tmp_path / "known", hosts=hosts)
    (tmp_path / "known").write_text(
        plain.known_hosts_line()
        + with_gpus.known_hosts_line()
        + f"[localhost]:{with_gpus.port} {public_key(with_gpus.host_key)}"
    )
    output = check(tmp_path, service, code=2).stdout
    who = f"{plain.user}@127.0.0.1"
    place = "error: training_service.hosts: "
    assert [line for line in output.splitlines() if line.startswith("error: ")] == [
        f"{place}'127.0.0.1:{plain.port}': {who} does not accept {key}; check 'user', and let the key in there with: "
        f"ssh-copy-id -i {key} -p {plain.port} {who}",
        f"{place}'127.0.0.1:{port}': 127.0.0.1 port {port} refuses connections; check the port, and that sshd runs "
        "there",
        f"{place}'localhost:{with_gpus.port}': work_dir {tmp_path}/file can't be written (Not a directory); name a "
        f"folder that {plain.user} may write",
    ]
    assert output.endswith("1 of 4 hosts can run jobs\n")
    told = json.loads(check(tmp_path, service, "--json", code=2).stdout)
    assert [(one["in_order"], one["reachable"], one["key_accepted"]) for one in told] == [
        (True, True, True),
        (False, True, False),
        (False, False, None),
        (False, True, True),
    ]
    assert told[0]["report"]["gpus"][0] == {
        "index": 0,
        "name": "NVIDIA A100-SXM4-80GB",
        "memory_used": "1024 MiB",
        "memory_total": "81920 MiB",
        "users": [],
    }
    assert told[1]["report"] is None
    assert "Not a directory" in told[3]["report"]["folder_error"]["text"]


def test_other_services_have_no_hosts_to_check(tmp_path):
    done = check(tmp_path, {"kind": "local"}, code=2)
    assert done.stderr == ("error: training_service.kind: it is 'local'; only hosts of the kind 'ssh' can be checked\n")


@pytest.mark.long
def test_a_passphrase_in_a_prefect_block(plain, tmp_path, prefect_server: PrefectServer):
    """Text that reads as a number stays as it is."""
    passphrase = "1.1e10"
    save = f"from prefect.blocks.system import Secret; Secret(value={passphrase!r}).save('key-of-the-lab')"
    run_forked(["python", "-c", save], tmp_path, prefect_server.env).check_returncode()
    key = make_key(tmp_path / "key", passphrase)
    with (plain.folder / "authorized_keys").open("a") as file:
        file.write(public_key(key))

    def service(block: str) -> dict[str, Any]:
        host = plain.config_host(key_file=str(key), passphrase={"prefect_block": block})
        return ssh_section([plain], tmp_path / "known", hosts=[host])

    done = check(tmp_path, service("key-of-the-lab"), code=0, env=prefect_server.env)
    assert done.stdout.endswith("1 of 1 hosts can run jobs\n")
    missing = check(tmp_path, service("of-another-lab"), code=2, env=prefect_server.env).stdout.splitlines()
    assert missing[-2] == (
        "error: Prefect has no Secret block 'of-another-lab'; create it in the UI under Blocks, or name one that "
        "'prefect block ls' lists"
    )
