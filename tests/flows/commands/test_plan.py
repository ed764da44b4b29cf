"""`nasflow plan`: what it prints, draws and refuses."""

import json
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from nasflow.config.services.local import LocalServiceConfig
from nasflow.flows.cli import main
from nasflow.flows.commands.plan.command import slot_environment
from tests.flows.searches import HERE, NASFLOW

EVALUATOR = {"kind": "classification", "data": {"target": "nasflow.evaluator.data:DigitsRows"}, "epochs": 2}
CONFIG: dict[str, Any] = {
    "name": "planned",
    "base_dir": str(HERE),
    "space": {"target": "plan_spaces.py:trunk"},
    "evaluator": EVALUATOR,
    "budget": {"trials_per_round": 6},
    "merge": {"fuse": "always"},
    "training_service": {"kind": "local", "slots": 1},
}
Plan = Callable[..., str]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the command runs, with figures of its own."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "here"


@pytest.fixture
def plan(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Plan:
    """Run the command in this process, which is made what a job's process is."""
    for name, value in slot_environment(LocalServiceConfig(slots=1)).items():
        monkeypatch.setenv(name, value)

    def run(*arguments: object, code: int = 0, **changes: Any) -> str:
        (folder / "search.yaml").write_text(yaml.safe_dump(CONFIG | changes))
        monkeypatch.setattr(sys, "argv", ["nasflow", "plan", "search.yaml", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        told = capsys.readouterr()
        assert (ended.value.code or 0) == code, told.err
        return told.err if code else told.out

    return run


def test_the_plan_is_printed(plan: Plan, folder: Path) -> None:
    text = plan("--trials", 5)
    assert text.startswith("planned: 5 trials in one job on cpu, ")
    assert "batches of 64x64" in text
    assert "unit of trials 0-4" in text
    assert "computed once for trials 0-4: Linear, LayerNorm" in text
    rows = [line.split() for line in text.splitlines()]
    assert next(row for row in rows if "LayerNorm" in row)[1:7] == ["LayerNorm", "32", "→", "32", "all", "1"]
    assert re.search(r"\d+ of 25 operations fused; \d+ gathers?; expected \d+\.\d\d ms a step instead of", text)
    assert "in no unit with others" not in text
    assert [path.name for path in folder.iterdir()] == ["search.yaml"], "nothing is written here"


def test_it_says_where_the_figures_are_from(plan: Plan, folder: Path) -> None:
    path = next((folder.parent / "cache").rglob("*"), None)
    assert path is None
    assert re.search(r"optimizer; \d+ of them were measured now, in \d+\.\d s; they are kept in ", plan())
    [path] = (folder.parent / "cache" / "nasflow").iterdir()
    assert f"none is new; they are kept in {path}" in plan()


def test_as_many_trials_as_a_job_trains_at_a_time(plan: Plan) -> None:
    assert plan().startswith("planned: 6 trials in one job")
    assert plan(merge={"fuse": "always", "max_members": 4}).startswith("planned: 4 trials in one job")
    text = plan("--trials", 6, merge={"fuse": "always", "max_members": 4})
    assert text.startswith("planned: 6 trials in one job")
    assert "unit of trials 0-3" in text
    assert "wait for a place in the job (merge.max_members): trials 4-5" in text


def test_a_job_on_several_devices_has_units_on_each(plan: Plan) -> None:
    text = plan("--trials", 6, training_service={"kind": "local", "slots": 2, "devices_per_job": 2})
    assert text.startswith("planned: 6 trials in one job on 2 devices (cpu), ")
    planned = {device: trials for trials, device in re.findall(r"unit of trials ([\d, -]+) on device (\d)", text)}
    assert planned.keys() == {"0", "1"}
    assert len(re.findall(r"\d+", " ".join(planned.values()))) > 2
    assert "in no unit with others" not in text


def test_the_seed_decides_who_is_planned(plan: Plan) -> None:
    def shapes(text: str) -> list[str]:
        return re.findall(r"\d+ → \d+ +\S+", text)

    first = shapes(plan("--trials", 3))
    assert shapes(plan("--trials", 3)) == first
    others = [shapes(plan("--trials", 3, "--seed", seed)) for seed in (1, 2, 3)]
    assert any(other != first for other in others)
    assert others[0] == shapes(plan("--trials", 3, seed=1))


def test_those_that_are_not_fused_are_named_with_the_reason(plan: Plan) -> None:
    text = plan("--trials", 16, "--seed", 1, space={"target": "plan_spaces.py:odd"}, merge={"fuse": "always"})
    reasons = dict(re.findall(r"(\S.*): trials [\d, -]+: (.*)", text))
    assert reasons.keys() == {"in no unit with others", "failed before the first step"}
    assert reasons["in no unit with others"].startswith("it can't be traced: add_ writes into a tensor that ")
    assert "Strange (opaque)" in text
    assert reasons["failed before the first step"] == "ValueError: this one can't be built"
    assert "the job as a whole, without the" in text


@pytest.mark.parametrize(
    ("changes", "each", "units"),
    [
        ({"folds": 3}, "3 folds", [f"0-1 (fold {fold})" for fold in (1, 2, 3)]),
        ({"repeats": 2}, "2 repeats", ["0-1 (repeats 1-2)"]),
    ],
)
def test_which_folds_and_repeats_are_in_a_unit(plan: Plan, folder: Path, changes, each: str, units: list[str]) -> None:
    text = plan("--trials", 2, "--draw", "plan.svg", evaluator=EVALUATOR | changes)
    assert text.startswith(f"planned: 2 trials of {each} each in one job")
    assert re.findall(r"unit of trials (.*\))", text) == units
    texts = [element.text for element in ET.parse(folder / "plan.svg").iter("{http://www.w3.org/2000/svg}text")]
    assert texts[0] == f"planned: trials {units[0]}"
    lanes = sorted(text for text in texts if text and text.startswith("trial "))
    one = each[2:-1]
    numbers = [1] if one == "fold" else [1, 2]
    assert lanes == [f"trial {trial} ({one} {number})" for trial in (0, 1) for number in numbers]
    alone = plan("--trials", 2, evaluator=EVALUATOR | changes, merge={"fuse": "never"})
    assert f"in no unit with others: trials 0-1 ({each[2:]} 1-{each[0]}): merge.fuse is never" in alone


def test_nothing_is_fused_where_nothing_may_be(plan: Plan) -> None:
    text = plan("--trials", 3, merge={"fuse": "never"})
    assert "in no unit with others: trials 0-2: merge.fuse is never" in text
    assert "unit of" not in text


def test_searched_data_makes_several_jobs(plan: Plan) -> None:
    data = {"target": "nasflow.evaluator.data:DigitsRows", "params": {"batch_size": {"pick": [32, 64]}}}
    text = plan("--trials", 6, evaluator=EVALUATOR | {"data": data})
    assert "planned, job 1 of 2: " in text
    assert {"batches of 32x64", "batches of 64x64"} == set(re.findall(r"batches of \w+", text))


def test_the_picture_is_of_the_largest_unit(plan: Plan, folder: Path) -> None:
    text = plan("--trials", 4, "--draw", "plan.svg")
    assert text.splitlines()[-1] == "drawn: plan.svg"
    texts = [element.text for element in ET.parse(folder / "plan.svg").iter("{http://www.w3.org/2000/svg}text")]
    assert sorted(text for text in texts if text and text.startswith("trial ")) == [f"trial {i}" for i in range(4)]
    assert "LayerNorm" in texts
    assert texts[0] == "planned: trials 0-3"
    assert re.fullmatch(r"\d+ of 20 operations fused, \d gathers?; .* ms a step instead of .* ms", texts[1] or "")


@pytest.mark.parametrize(
    ("arguments", "changes", "sentence"),
    [
        (["--draw", "no/where.svg"], {}, "--draw: there is no folder "),
        (["--draw", "plan.svg"], {"merge": {"fuse": "never"}}, "there is nothing to draw, because no trials are fused"),
        ([], {"merge": {"enabled": False}}, "merge.enabled is false, so every trial trains in a job of its own"),
        ([], {"merge": {"passes": ["plan_spaces.py:nothing"]}}, "'plan_spaces.py' has no 'nothing'"),
        ([], {"space": {"target": "plan_spaces.py:trnk"}}, "'plan_spaces.py' has no 'trnk'"),
        ([], {"objectives": [{"metric": "val_auroc"}]}, "no metric 'val_auroc' is logged"),
    ],
)
def test_a_users_mistake_is_told_in_a_sentence(plan: Plan, folder: Path, arguments, changes, sentence) -> None:
    assert sentence in plan(*arguments, code=2, **changes)
    assert [path.name for path in folder.iterdir()] == ["search.yaml"]


def test_figures_are_those_of_a_jobs_process(folder: Path) -> None:
    """The command starts itself once more as a slot's process is started; no Prefect is needed for it."""
    config = CONFIG | {"space": {"target": "plan_report.py:space"}, "base_dir": str(folder)}
    (folder / "search.yaml").write_text(yaml.safe_dump(config))
    (folder / "plan_report.py").write_text(
        "import json, os, sys\n"
        "import torch\n"
        "def space(pick):\n"
        "    told = [os.environ['OMP_NUM_THREADS'], os.environ['CUDA_VISIBLE_DEVICES'], 'prefect' in sys.modules]\n"
        "    open('told.json', 'w').write(json.dumps(told))\n"
        "    return torch.nn.Linear(64, 10)\n"
    )
    done = subprocess.run([*NASFLOW, "plan", "search.yaml"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    threads = slot_environment(LocalServiceConfig(slots=1))["OMP_NUM_THREADS"]
    assert json.loads((folder / "told.json").read_text()) == [threads, "", False]
    assert f"on cpu, {threads} thread" in done.stdout
