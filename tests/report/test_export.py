"""Exports: the model comes back, from the export alone, in a fresh process."""

import json
import os
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from nasflow.config.search import SearchConfig, parse_config
from nasflow.errors import CheckpointError, UserError
from nasflow.evaluator.candidate import candidate_space
from nasflow.flows.commands.console import score_command
from nasflow.report.export.code_files import collect_code
from nasflow.report.export.folder import export_model
from nasflow.space.architecture import Architecture
from nasflow.training.scoring import score_model
from nasflow.trial import Trial, TrialStatus
from tests.flows.forked_commands import run_forked

_SPACE = """
from torch import nn
from blocks.dense import block
from activations import by_name

def build(pick, classes):
    width = pick("width", [4, 8])
    return nn.Sequential(block(64, width), by_name(pick("act", ["relu", "tanh"])), nn.Dropout(0.5),
                         nn.Linear(width, classes))
"""
_ACTIVATIONS = """
from torch import nn

def by_name(name):
    return {"relu": nn.ReLU, "tanh": nn.Tanh}[name]()
"""
_DENSE = """
from .wide import WIDTH
from torch import nn

def block(inputs, outputs):
    return nn.Linear(inputs, outputs)
"""
_FILES = {
    "spaces/mine.py": _SPACE,
    "spaces/activations.py": _ACTIVATIONS,
    "spaces/blocks/__init__.py": "",
    "spaces/blocks/dense.py": _DENSE,
    "spaces/blocks/wide.py": "WIDTH = 1\n",
    "spaces/blocks/old.py": "print 'Python 2, not imported'\n",
    "unused.py": "raise RuntimeError\n",
    "mydata.py": "from nasflow.evaluator.data import DigitsRows\n\ndigits = lambda **params: DigitsRows(**params)\n",
}


@pytest.fixture
def config(tmp_path: Path) -> SearchConfig:
    for name in [name for name in sys.modules if name.partition(".")[0] in ("activations", "blocks", "mydata")]:
        del sys.modules[name]  # another test's
    home = tmp_path / "home"
    for place, text in _FILES.items():
        (home / place).parent.mkdir(parents=True, exist_ok=True)
        (home / place).write_text(text)
    return parse_config(
        {
            "name": "mine",
            "space": {"target": "spaces/mine.py:build", "params": {"classes": 10}},
            "evaluator": {
                "kind": "classification",
                "data": {"target": "mydata:digits", "params": {"batch_size": 32}},
                "optimizer": {"lr": {"float": [1e-3, 1e-1], "log": True}},
            },
            "base_dir": home,
            "work_dir": tmp_path,
        }
    )


def build(config: SearchConfig) -> tuple[Trial, dict[str, torch.Tensor]]:
    """A trial with random weights, scored as the search scores it."""
    values = {"width": 8, "act": "tanh", "optimizer.lr": 0.01}
    torch.manual_seed(0)
    candidate = candidate_space(config.space, config.evaluator, config.base_dir).build(values)
    weights = dict(candidate.model.state_dict())
    trial = Trial(number=4, round=1, architecture=Architecture(values), seed=9, status=TrialStatus.TRAINED, epochs=3)
    return trial, weights


def test_an_export_scores_the_same_in_a_fresh_process(config: SearchConfig, tmp_path: Path) -> None:
    (config.base_dir / "spaces/blocks/more").mkdir()
    (config.base_dir / "spaces/blocks/more/score.py").touch()  # which the export's script does not hide
    trial, weights = build(config)
    search: dict[str, Any] = {**config.model_dump(mode="json"), "trial_seed": trial.seed}
    first = export_model(tmp_path / "first", trial, config, weights)
    metrics = score_model(search, dict(trial.architecture), first / "model.safetensors", config.base_dir)
    assert 0 < metrics["val_accuracy"] < 1
    out = export_model(tmp_path / "deep" / "best", trial.model_copy(update={"metrics": metrics}), config, weights)
    space = candidate_space(config.space, config.evaluator, config.base_dir)
    model = space.build(trial.architecture).model.eval()
    model.load_state_dict(weights)
    expected = model(torch.ones(1, 64))
    config.base_dir.rename(tmp_path / "gone")  # the export alone
    moved = out.rename(tmp_path / "moved")

    done = run_forked(["python", moved / "score.py"], tmp_path, os.environ)
    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout)
    assert shown["metrics"]["val_accuracy"] == pytest.approx(metrics["val_accuracy"], abs=1e-6)
    assert shown["different"] == shown["missing"] == []

    record = json.loads((moved / "search.json").read_text())
    record["metrics"]["val_accuracy"] += 1e-4
    (moved / "search.json").write_text(json.dumps(record))
    done = run_forked(["python", "-c", _LOAD], moved, os.environ)
    assert done.returncode == 1, done.stderr
    line, _, rest = done.stdout.partition("\n")
    assert json.loads(rest)["different"] == ["val_accuracy"]
    assert torch.allclose(torch.tensor(json.loads(line)), expected)


_LOAD = """
import sys, torch
from score import load, main
print(load()(torch.ones(1, 64)).tolist())
sys.exit(main())
"""


def test_what_an_export_holds(config: SearchConfig, tmp_path: Path) -> None:
    trial, weights = build(config)
    shared = {**weights, "view": weights["0.weight"].T}  # not contiguous, and shares memory
    out = export_model(tmp_path / "out", trial, config, shared)
    found = sorted(str(path.relative_to(out)) for path in out.rglob("*") if path.is_file())
    assert found == [
        "architecture.json", "code/mydata.py", "code/spaces/activations.py", "code/spaces/blocks/__init__.py",
        "code/spaces/blocks/dense.py", "code/spaces/blocks/old.py", "code/spaces/blocks/wide.py", "code/spaces/mine.py",
        "model.safetensors", "score.py", "search.json",
    ]  # fmt: skip
    assert json.loads((out / "architecture.json").read_text()) == dict(trial.architecture)
    record = json.loads((out / "search.json").read_text())
    assert record["space"] == {"target": "spaces/mine.py:build", "params": {"classes": 10}}
    assert (record["study"], record["trial"], record["trial_seed"], record["seed"]) == ("mine", 4, 9, 0)
    assert str(tmp_path) not in (out / "search.json").read_text()
    loaded = load_file(out / "model.safetensors")
    assert loaded.keys() == shared.keys() and all(torch.equal(loaded[name], shared[name]) for name in shared)
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_files_beside_the_code_come_too(config: SearchConfig, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Those of packages, and those that params name, but for large and hidden ones."""
    trial, _ = build(config)
    params = {"classes": 10, "files": ["lists/words.json", "lists", "/etc/hostname", "../home/unused.py", "x\0" * 400]}
    module = {"target": "mydata:digits", "params": {"teacher": "teacher.json"}}
    evaluator = {"kind": "lightning", "module": module, "data": {"target": "mydata:digits"}}
    config = parse_config({**config.model_dump(exclude_unset=True), "evaluator": evaluator})
    config = config.model_copy(update={"space": config.space.model_copy(update={"params": params})})
    for place in ("lists/words.json", "teacher.json", "spaces/blocks/sizes/some.csv", "spaces/blocks/.git/config"):
        (config.base_dir / place).parent.mkdir(parents=True, exist_ok=True)
        (config.base_dir / place).write_text("import mydata")
    export_model(tmp_path / "out", trial, config, {})
    code = tmp_path / "out" / "code"
    more = [path for path in code.rglob("*") if path.is_file() and path.suffix != ".py"]
    assert sorted(map(str, (path.relative_to(code) for path in more))) == [
        "lists/words.json",
        "spaces/blocks/sizes/some.csv",
        "teacher.json",
    ]
    (config.base_dir / "spaces/blocks/large.bin").touch()
    os.truncate(config.base_dir / "spaces/blocks/large.bin", 2**25)
    (config.base_dir / "spaces/activations.py").write_text(f"import blocks.dense\n{_ACTIVATIONS}")
    export_model(tmp_path / "out", trial, config, {})
    assert not [path for path in code.rglob("*") if path.suffix in (".csv", ".bin")]
    assert len(caplog.records) == 1 and "blocks only the Python files are exported" in caplog.text


def test_the_code_of_callbacks_comes_too(config: SearchConfig, tmp_path: Path) -> None:
    trial, _ = build(config)
    (config.base_dir / "watch.py").write_text("import named")
    (config.base_dir / "named.py").touch()
    (config.base_dir / "names.txt").touch()
    callback = {"target": f"{config.base_dir}/watch.py:Watch", "params": {"file": "names.txt"}}
    values = config.model_dump(exclude_unset=True)
    config = parse_config({**values, "evaluator": {**values["evaluator"], "callbacks": [callback]}})
    export_model(tmp_path / "out", trial, config, {})
    assert {"watch.py", "named.py", "names.txt"} <= {file.name for file in (tmp_path / "out" / "code").iterdir()}
    record = json.loads((tmp_path / "out" / "search.json").read_text())
    assert record["evaluator"]["callbacks"] == [{**callback, "target": "watch.py:Watch"}]


_READS = """
import score
from pathlib import Path
from torch import nn
from nasflow.evaluator.data import DigitsRows

def build(pick, file):
    return nn.Linear(64, int(Path(file).read_text()) * score.TIMES)

def digits(folder):
    return DigitsRows(batch_size=int(Path(folder, "size").read_text()))
"""


def test_relative_paths_start_in_the_code_or_in_a_given_folder(tmp_path: Path) -> None:
    """Also, the search has a file with the name of the export's script."""
    home, out = tmp_path / "home", tmp_path / "out"
    (home / "lists").mkdir(parents=True)
    files = {"own.py": _READS, "score.py": "TIMES = 2", "lists/size": "32", "classes.txt": "5"}
    for place, text in files.items():
        (home / place).write_text(text)
    data = {"target": "own.py:digits", "params": {"folder": "lists"}}
    values = {"name": "mine", "base_dir": home, "evaluator": {"kind": "classification", "data": data}}
    config = parse_config({**values, "space": {"target": "own.py:build", "params": {"file": "classes.txt"}}})
    trial = Trial(number=4, round=1, architecture=Architecture({}), seed=9, status=TrialStatus.TRAINED, epochs=3)
    export_model(out, trial, config, torch.nn.Linear(64, 10).state_dict())

    done = run_forked(["python", out / "score.py"], home, os.environ)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "there is no file or folder 'lists/size': an export has the search's code, not its data" in done.stderr
    assert f"relative paths start in {out}/code, or" in done.stderr
    command = shlex.split(score_command(out, config.base_dir))
    done = run_forked(["python", *command[1:]], tmp_path, os.environ)
    assert "val_accuracy" in json.loads(done.stdout)["metrics"], done.stderr
    done = run_forked(["python", "-c", _LOAD_TWICE], out, os.environ)
    told, model = done.stdout.splitlines()
    assert (
        told == f"{out}/score.py hides {out}/code/score.py, which code may import: rename it, and import load from it"
    )
    assert model == "Linear(in_features=64, out_features=10, bias=True)"


_LOAD_TWICE = """
import os, score, sys
from nasflow.errors import UserError
try:
    score.load("code")
except UserError as error:
    print(error)
del sys.modules["score"]
os.rename("score.py", "best.py")
from best import load
print(load("code"))
"""


def test_an_export_replaces_only_an_export(config: SearchConfig, tmp_path: Path) -> None:
    trial, weights = build(config)
    out = tmp_path / "out"
    out.mkdir()
    export_model(out, trial, config, weights)  # an empty folder is no one's
    (out / "stale").touch()
    export_model(out, trial.model_copy(update={"number": 5}), config, weights)
    assert not (out / "stale").exists() and json.loads((out / "search.json").read_text())["trial"] == 5
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "search.json").write_text("{}")
    (tmp_path / "file").touch()
    for other in ("thesis", "file"):
        with pytest.raises(UserError, match=f"{other} exists and is not an export"):
            export_model(tmp_path / other, trial, config, weights)
    assert (tmp_path / "thesis" / "search.json").read_text() == "{}"


def test_a_failed_export_leaves_the_earlier_one(config: SearchConfig, tmp_path: Path) -> None:
    trial, weights = build(config)
    out = export_model(tmp_path / "out", trial, config, weights)
    (tmp_path / ".out.new").mkdir()  # left by a killed export
    with pytest.raises(CheckpointError, match=r"state at '/0\.weight' is a object"):
        export_model(out, trial, config, {"0.weight": object()})
    assert (out / "score.py").exists()
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


@pytest.mark.parametrize("error", [OSError("busy"), KeyboardInterrupt()], ids=["OSError", "Ctrl-C"])
def test_an_export_that_fails_at_the_end_leaves_the_earlier_one(
    config: SearchConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    trial, weights = build(config)
    out = export_model(tmp_path / "out", trial, config, weights)
    rename = Path.rename

    def fails(path: Path, target: Path) -> Path:
        if path.name == ".out.new":
            raise error
        return rename(path, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", fails)
        with pytest.raises(type(error)):
            export_model(out, trial.model_copy(update={"number": 5}), config, weights)
    assert json.loads((out / "search.json").read_text())["trial"] == 4
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_the_earlier_export_of_a_killed_one_is_put_back(config: SearchConfig, tmp_path: Path) -> None:
    trial, weights = build(config)
    out = export_model(tmp_path / "out", trial, config, weights)
    out.rename(tmp_path / ".out.old")
    with pytest.raises(CheckpointError, match=r"state at '/0\.weight' is a object"):
        export_model(out, trial, config, {"0.weight": object()})
    assert (out / "score.py").exists()
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_a_link_to_an_export_stays_one(config: SearchConfig, tmp_path: Path) -> None:
    trial, weights = build(config)
    (tmp_path / "large").mkdir()
    export_model(tmp_path / "large" / "out", trial, config, weights)
    link = tmp_path / "out"
    link.symlink_to(tmp_path / "large" / "out")
    assert export_model(link, trial.model_copy(update={"number": 5}), config, weights) == link
    assert link.is_symlink()
    assert json.loads((tmp_path / "large" / "out" / "search.json").read_text())["trial"] == 5


def test_code_outside_the_config_folder_comes_to_the_top(tmp_path: Path) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "space.py").write_text("import helper, json, torch\n")
    (tmp_path / "lib" / "helper.py").write_text("import space\n")
    (tmp_path / "conf" / "data.py").write_text("")
    targets = ["../lib/space.py:build", "data.py:load", "data:load", "nasflow.space.ready:mlp"]
    files, renamed = collect_code(targets, tmp_path / "conf")
    assert files == {
        Path("space.py"): tmp_path / "lib" / "space.py",
        Path("helper.py"): tmp_path / "lib" / "helper.py",
        Path("data.py"): tmp_path / "conf" / "data.py",
    }
    assert renamed == {
        "../lib/space.py:build": "space.py:build",
        "data.py:load": "data.py:load",
        "data:load": "data:load",
        "nasflow.space.ready:mlp": "nasflow.space.ready:mlp",
    }
    (tmp_path / "conf" / "space.py").write_text("")
    with pytest.raises(UserError, match=r"would both be space\.py"):
        collect_code([*targets, "space.py:other"], tmp_path / "conf")
