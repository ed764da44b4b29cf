"""Searches whose trials are trained by a function or a program of the user's own."""

import os
import signal
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.flows.searches import HERE, Searches
from tests.sshd import start_sshd

LR = {"lr": {"pick": [0.1, 0.4]}}
EVALUATORS: dict[str, dict[str, Any]] = {
    "lightning": {
        "kind": "lightning",
        "module": {"target": "program_kinds.py:Module", "params": LR},
        "data": {"target": "program_kinds.py:data"},
        "epochs": 4,
    },
    "function": {"kind": "function", "target": "program_kinds.py:train", "params": LR, "epochs": 4},
    "command": {"kind": "command", "command": ["python", "program_train.py"], "params": LR, "epochs": 4},
}


def config(kind: str, **changes: Any) -> dict[str, Any]:
    return {
        "space": {"target": "program_kinds.py:net"},
        "evaluator": EVALUATORS[kind],
        "strategy": {"kind": "grid"},
        "objectives": [{"metric": "val_accuracy", "direction": "maximize"}, {"metric": "parameters"}],
        "budget": {"rounds": 2, "trials_per_round": 3},
        "merge": {"fuse": "never"},
        "retry": {"delay_seconds": [0.1]},
        "training_service": {"kind": "local", "slots": 2},
        **changes,
    }


def same_labels(trials: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The trials with the labels that params of a function or a command have."""
    for trial in trials:
        chosen = trial["architecture"].items()
        trial["architecture"] = {label.replace("module.params", "params"): value for label, value in chosen}
    return trials


@pytest.mark.long
@pytest.mark.timeout(900)  # twelve of its 18 trials are programs that import PyTorch
def test_the_same_search_three_ways_gives_the_same_leaderboard(searches: Searches) -> None:
    for kind in EVALUATORS:
        searches.write(kind, **config(kind))
        searches.run("run", f"{kind}.yaml")
    boards = {kind: same_labels(searches.json("leaderboard", kind)) for kind in EVALUATORS}
    assert len(boards["lightning"]) > 1 and len(searches.json("show", "lightning")["trials"]) == 6
    assert boards["function"] == boards["lightning"], "to the last bit"
    assert boards["command"] == boards["lightning"]
    curves = {kind: [trial["metrics"] for trial in searches.json("show", kind)["trials"]] for kind in EVALUATORS}
    assert curves["function"] == curves["command"] == curves["lightning"]
    refused = searches.run("export", "function", "--out", "exported", code=2)
    assert "save what their own programs save" in " ".join(refused.split())
    assert "nothing to plan" in " ".join(searches.run("plan", "command.yaml", code=2).split())


@pytest.mark.long
def test_a_trial_whose_program_is_killed_is_trained_again(searches: Searches) -> None:
    code = (
        "import json, os, pathlib, time\n"
        "folder = pathlib.Path(os.environ['NASFLOW_CHECKPOINTS'])\n"
        "trial = json.loads(pathlib.Path(os.environ['NASFLOW_TRIAL']).read_text())\n"
        "for epoch in range(1 + len(list(folder.iterdir())), 5):\n"
        "    if epoch == 3 and trial['architecture']['width'] == 16 and not os.path.exists('killed'):\n"
        "        pathlib.Path('pid').write_text(str(os.getpid())); time.sleep(1000)\n"
        "    with open(os.environ['NASFLOW_METRICS'], 'a') as file:\n"
        "        score = epoch / trial['architecture']['width']\n"
        "        print(json.dumps({'epoch': epoch, 'val_accuracy': score}), file=file)\n"
        "    (folder / str(epoch)).touch()\n"
    )
    base = searches.folder / "code"
    base.mkdir()
    (base / "train.py").write_text(code)
    (base / "program_kinds.py").write_text((HERE / "program_kinds.py").read_text())
    evaluator = {"kind": "command", "command": ["python", "train.py"], "epochs": 4}
    searches.write("program-shot", **config("command", evaluator=evaluator, base_dir=str(base)))
    with searches.start("run", "program-shot.yaml") as process:
        while not (base / "pid").exists() or not (base / "pid").read_text():
            assert process.poll() is None, process.communicate()
            time.sleep(0.1)
        (base / "killed").touch()
        os.kill(int((base / "pid").read_text()), signal.SIGKILL)
        output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output
    trials = searches.json("show", "program-shot")["trials"]
    assert [(trial["status"], trial["epochs"]) for trial in trials] == [("trained", 4)] * 3
    assert [trial["metrics"]["val_accuracy"] for trial in trials] == [0.5, 0.25, 4 / 24]


@pytest.mark.long
def test_programs_run_where_the_job_runs(searches: Searches, tmp_path: Path) -> None:
    with start_sshd(tmp_path / "host") as host:
        (searches.folder / "known_hosts").write_text(host.known_hosts_line())
        service = {
            "kind": "ssh",
            "hosts": [host.config_host(slots=1)],
            "known_hosts": str(searches.folder / "known_hosts"),
            "ssh_config": "/dev/null",
        }
        there = {"training_service": service, "budget": {"rounds": 1, "trials_per_round": 2}}
        for kind in ("function", "command"):
            searches.write(kind, **config(kind, **there))
            searches.run("run", f"{kind}.yaml")
    function, command = (searches.json("leaderboard", kind) for kind in ("function", "command"))
    assert len(function) == 2 and function == command


@pytest.mark.long
def test_a_program_that_hangs_is_blamed_and_the_others_go_on(searches: Searches, tmp_path: Path) -> None:
    base = tmp_path / "code"
    base.mkdir()
    (base / "space.py").write_text("def build(pick):\n    return pick('width', [8, 16, 24])\n")
    (base / "train.sh").write_text(
        "grep -q '16' $NASFLOW_TRIAL && echo $$ >> pids && sleep 1000\nnasflow report-metric loss=0.5\n"
    )
    changes = {
        "space": {"target": "space.py:build"},
        "objectives": [{"metric": "loss", "direction": "minimize"}],
        "evaluator": {"kind": "command", "command": ["sh", "train.sh"], "epochs": 1},
        "budget": {"rounds": 1, "trials_per_round": 3},
        "limits": {"trial": "5s"},
        "training_service": {"kind": "local", "slots": 1},
    }
    searches.write("program-hangs", **config("command", base_dir=str(base), **changes))
    searches.run("run", "program-hangs.yaml")
    trials = searches.json("show", "program-hangs")["trials"]
    assert [trial["status"] for trial in trials] == ["trained", "failed", "trained"]
    assert trials[1]["error"].startswith("a trial took longer than limits.trial allows (5s)")
    pids = [int(pid) for pid in (base / "pids").read_text().split()]
    assert pids and not any(psutil.pid_exists(pid) for pid in pids)
