"""`nasflow services check` as a user runs it."""

import json
import os
import re
import signal
import subprocess
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from nasflow.testing.training_service import mentions, running, until
from tests.flows.forked_commands import run_forked, start_forked
from tests.sshd import ssh_section, start_sshd

SEARCH = {
    "name": "anywhere",
    "space": {"target": "nasflow.space.ready:mlp"},
    "evaluator": {"kind": "classification", "data": {"target": "nasflow.evaluator.data:DigitsRows"}},
    "work_dir": "runs/of/mine",
}


def write(folder: Path, service: Any) -> None:
    (folder / "search.yaml").write_text(yaml.safe_dump(SEARCH | {"training_service": service}))


def check(folder: Path, service: Any, *options: str, code: int) -> str:
    """What the command prints in a folder, in which it leaves nothing."""
    write(folder, service)
    before = set(folder.iterdir())
    command = ["nasflow", "services", "check", "search.yaml", *options]
    done: subprocess.CompletedProcess[str] = run_forked(command, folder, os.environ, timeout=300)
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert set(folder.iterdir()) == before
    return done.stdout


@pytest.mark.long
def test_a_table_has_what_jobs_found_and_each_service_is_checked(tmp_path: Path) -> None:
    with start_sshd(tmp_path / "host") as host:
        ssh = ssh_section([host], tmp_path / "known", hosts=[host.config_host(slots=1)])
        output = check(tmp_path, [{"kind": "local", "slots": 1}, ssh], code=0)
        host.wait_until_left()
        assert list(host.home.iterdir()) == []
    rows = [line for line in output.splitlines() if line.count("│") > 5]
    assert len(rows) == 2
    for row, slot in zip(rows, ["cpu-0", f"127.0.0.1:{host.port}"], strict=True):
        assert slot in row
        assert "in step" in row
        assert re.search(r" \d+, \d+ MB/s ", row)
    assert output.endswith("2 of 2 training services can run jobs\n")


def test_a_problem_is_one_line_and_the_exit_code_is_2(tmp_path: Path) -> None:
    ray = {"kind": "ray", "address": "http://127.0.0.1:9"}
    output = check(tmp_path, ray, code=2)
    (error,) = [line for line in output.splitlines() if line.startswith("error: ")]
    assert error.startswith("error: ray: training_service.address: Ray's Jobs API at http://127.0.0.1:9 does not")
    assert output.endswith("0 of 1 training services can run jobs\n")
    told = json.loads(check(tmp_path, [ray, {"kind": "local", "slots": 1}], "--json", code=2))
    assert [(one["service"], one["in_order"], len(one["slots"])) for one in told] == [
        ("ray", False, 0),
        ("local", True, 1),
    ]
    assert told[1]["slots"][0]["report"]["torch"]
    assert told[1]["slots"][0]["clock"]["off"] is False


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_nothing_is_left_if_it_is_interrupted(tmp_path: Path, number: signal.Signals) -> None:
    write(tmp_path, {"kind": "local", "slots": 1})
    with start_forked(["nasflow", "services", "check", "search.yaml"], tmp_path, os.environ) as program:
        until(lambda: list(tmp_path.glob("runs/of/mine/anywhere-check-*/jobs/check-0/job.json")), "the job", 120)
        program.send_signal(number)
        assert program.wait(120) != 0, program.said()
    assert [path.name for path in tmp_path.iterdir()] == ["search.yaml"]
    assert not [each for each in psutil.process_iter() if mentions(each, str(tmp_path)) and running(each)]
