"""The command line as a person and a program use it."""

import json
import subprocess
import sys
from typing import Any

import pytest

from nasflow.flows.cli import main
from nasflow.training_service.local.state import ROOT_VARIABLE
from nasflow.training_service.machine.processes import carriers
from tests.flows.forked_commands import run_forked
from tests.flows.searches import Searches

SPACE = {"target": "spaces.py:mixed", "params": {"widths": [8, 12, 16, 20]}}
EVALUATOR = {
    "kind": "classification",
    "data": {"target": "nasflow.evaluator.data:DigitsRows"},
    "epochs": 2,
    "optimizer": {"name": "adamw", "lr": {"float": [0.001, 0.01], "log": True}},
}
CONFIG: dict[str, Any] = {"space": SPACE, "evaluator": EVALUATOR, "budget": {"rounds": 1, "trials_per_round": 3}}


@pytest.fixture(scope="module")
def done(tmp_path_factory, prefect_server):
    """A finished search, and what it printed."""
    searches = Searches(tmp_path_factory.mktemp("done"), prefect_server)
    searches.write("small", **CONFIG)
    return searches, searches.run_program("run", "small.yaml", "--export-best", "best")


def test_run_ends_with_leaderboard_model_and_ui(done):
    searches, output = done
    assert "leaderboard: maximize val_accuracy" in output
    assert "trained best model: trial" in output
    assert f"see it in the Prefect UI: {searches.server.url.removesuffix('/api')}" in output


def test_exported_model_scores_the_same_in_a_fresh_process(done):
    searches, _ = done
    moved = searches.folder / "elsewhere"
    (searches.folder / "best").rename(moved)
    scored = subprocess.run([sys.executable, moved / "score.py"], capture_output=True, text=True, check=True, cwd="/")
    answer = json.loads(scored.stdout)
    best = searches.json("leaderboard", "small", "--top", 1)[0]
    assert abs(answer["metrics"]["val_accuracy"] - best["val_accuracy"]) <= 1e-6
    assert answer["different"] == []


def test_export_writes_the_best_models(done):
    searches, _ = done
    searches.run("export", "small", "--top", 2, "--out", "models")
    folders = sorted((searches.folder / "models").iterdir())
    assert [folder.name.partition("-trial-")[0] for folder in folders] == ["01", "02"]
    assert all((folder / "model.safetensors").is_file() for folder in folders)


def test_show_studies_and_leaderboard_speak_json(done):
    searches, _ = done
    shown = searches.json("show", "small")
    assert [trial["status"] for trial in shown["trials"]] == ["trained"] * 3
    listed = searches.json("studies")
    assert [study["name"] for study in listed] == ["small"]
    assert listed[0]["best"] == searches.json("leaderboard", "small")[0]["val_accuracy"]


def test_tables_for_people(done):
    searches, _ = done
    assert "3 of 3 trials scored" in searches.run("show", "small")
    assert "small" in searches.run("studies")
    assert "kind=ok" in searches.run("leaderboard", "small")


def test_the_same_command_again_trains_nothing(done):
    searches, _ = done
    before = searches.events("small")
    searches.run("run", "small.yaml")
    assert searches.events("small") == before


def test_a_larger_budget_extends_the_search(done):
    searches, _ = done
    first = searches.json("show", "small")["trials"]
    searches.write("small", **CONFIG | {"budget": {"rounds": 2, "trials_per_round": 3}})
    searches.run("run", "small.yaml")
    trials = searches.json("show", "small")["trials"]
    assert trials[:3] == first
    assert [trial["round"] for trial in trials] == [0, 0, 0, 1, 1, 1]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"evaluator": {**EVALUATOR, "epochs": 3}}, "study 'small': evaluator.epochs is 2 on record, 3 in the config"),
        ({"objectives": [{"metric": "val_loss", "direction": "minimize"}]}, "study 'small': objectives.0"),
        ({"space": {**SPACE, "params": {"widths": [8]}}}, "study 'small': space.params.widths"),
        ({"stratgy": {"kind": "random"}}, "stratgy: unknown key; did you mean 'strategy'?"),
        ({"space": {"target": "spaces.py:mixd"}}, "'spaces.py' has no 'mixd'"),
        ({"space": {"target": "spces.py:mixed"}}, "there is no file"),
        ({"objectives": [{"metric": "accuracy"}]}, "no metric 'accuracy' is logged; there are: train_loss"),
        ({"evaluator": {**EVALUATOR, "optimizer": {"name": "sgd", "betas": [0.9, 0.99]}}}, "sgd does not take it"),
        ({"space": {"target": "spaces.py:conflicting"}}, "label 'width' was first"),
        ({"strategy": {"kind": "tpe", "params": {"startup": 3}}}, "startup"),
    ],
)
def test_a_users_mistake_is_one_sentence_and_exit_code_2(done, change, sentence, monkeypatch, capsys):
    searches, _ = done
    monkeypatch.chdir(searches.folder)
    name = "small" if "study 'small'" in sentence else "mistaken"
    searches.write(name, **CONFIG | change)
    before = sorted(path.name for path in searches.folder.iterdir())
    monkeypatch.setattr(sys, "argv", ["nasflow", "run", f"{name}.yaml"])
    with pytest.raises(SystemExit) as ended:  # in this process, which has torch imported already
        main()
    assert ended.value.code == 2
    output = capsys.readouterr().err
    assert sentence in output
    assert output.startswith("error: ") and output.count("\n") == 1, "one sentence, and no traceback"
    assert sorted(path.name for path in searches.folder.iterdir()) == before
    assert not (searches.folder / "nasflow-runs" / "mistaken").exists()
    assert not carriers(ROOT_VARIABLE, str(searches.folder / "nasflow-runs" / name)), "workers are left behind"


def test_a_file_that_can_not_be_used_is_one_sentence(tmp_path, monkeypatch, capsys):
    (tmp_path / "file").touch()
    monkeypatch.setattr("nasflow.flows.cli.app", lambda: (tmp_path / "file" / "picture.svg").write_text("plan"))
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    said = " ".join(capsys.readouterr().err.split())
    assert said.startswith("error: ") and said.endswith("Not a directory; mend this, and run the command again")


def test_unknown_study_and_store(searches):
    assert "there is no database" in searches.run("show", "nothing", code=2)
    assert "can't be read" in searches.run("run", "nothing.yaml", code=2)


def test_an_unreachable_prefect_server_is_named(searches):
    searches.write("offline", **CONFIG)
    env = {**searches.server.env, "PREFECT_API_URL": "http://127.0.0.1:9/api", "PREFECT_CLIENT_MAX_RETRIES": "0"}
    ended = run_forked(["nasflow", "run", "offline.yaml"], searches.folder, env, timeout=200)
    assert ended.returncode == 2, ended.stderr
    assert "Prefect's API at http://127.0.0.1:9/api can't be reached" in ended.stderr


def test_validate_counts_the_space(searches):
    searches.write("counted", **CONFIG | {"evaluator": {**EVALUATOR, "optimizer": {"lr": 0.01}}})
    assert "is valid: 4 architectures, strategy random" in searches.run("validate", "counted.yaml")


def test_schema_describes_the_config(searches):
    schema = json.loads(searches.run("schema"))
    assert {"name", "space", "evaluator", "strategy", "budget"} <= schema["properties"].keys()


@pytest.mark.parametrize("command", [["--help"], ["leaderboard", "small"], ["studies"], ["schema"]])
def test_looking_imports_neither_torch_nor_prefect(done, command):
    searches, _ = done
    code = (
        "import sys\nfrom nasflow.flows.cli import main\nsys.argv = ['nasflow', *sys.argv[1:]]\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "print('slow:', sorted({'torch', 'prefect', 'pytorch_lightning', 'optuna'} & sys.modules.keys()))"
    )
    run = [sys.executable, "-c", code, *command]
    ended = subprocess.run(
        run, cwd=searches.folder, env=searches.server.env, capture_output=True, text=True, check=True
    )
    assert ended.stdout.splitlines()[-1] == "slow: []"
