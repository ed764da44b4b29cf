"""What README and docs show works as it stands there."""

import os
import re
import sys
from pathlib import Path
from typing import get_args

import pytest
import yaml

from nasflow.config.search import StrategyConfig, load_config, parse_config
from nasflow.evaluator.check import check_search
from nasflow.flows.cli import app, main
from nasflow.strategy.make import make_strategy
from tests.flows.forked_commands import run_forked

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, flags=re.DOTALL)


def test_the_readmes_space_and_search_are_valid(tmp_path, monkeypatch, capsys):
    (tmp_path / "space.py").write_text(blocks(README, "python")[0])
    (tmp_path / "search.yaml").write_text(blocks(README, "yaml")[0])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["nasflow", "validate", "search.yaml"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code, capsys.readouterr().err
    assert "search.yaml is valid" in capsys.readouterr().out


def test_the_readmes_search_is_short():
    lines = [*blocks(README, "python")[0].splitlines(), *blocks(README, "yaml")[0].splitlines()]
    assert len([line for line in lines if line and not line.startswith("#")]) <= 20


def test_the_readme_names_every_command():
    for command in app.registered_commands:
        assert command.callback is not None
        name = command.callback.__name__.replace("_", "-")
        assert re.search(rf"`(nasflow )?{name}\b", README), name


@pytest.mark.parametrize(
    "block",
    [block for page in ("config.md", "evaluators.md") for block in blocks((ROOT / "docs" / page).read_text(), "yaml")],
)
def test_the_configs_of_the_reference_parse(block):
    """Some show a section only, or some of its keys."""
    config = yaml.safe_load(block)
    shown = config["evaluator"]
    plain = {"kind": "classification", "data": {"target": "nasflow.evaluator.data:Digits"}}
    evaluator = shown if "kind" in shown else {**plain, **shown}
    parse_config({"name": "shown", "space": {"target": "nasflow.space.ready:mlp"}, **config, "evaluator": evaluator})


@pytest.mark.parametrize("file", sorted((ROOT / "examples").rglob("*.yaml")), ids=lambda path: path.stem)
def test_the_examples_parse(file):
    parse_config(yaml.safe_load(file.read_text()))


def test_there_is_an_example_of_each_strategy():
    kinds = {value for section in get_args(get_args(StrategyConfig)[0]) for value in kinds_of(section)}
    files = sorted((ROOT / "examples" / "strategies").glob("*.yaml"))
    assert {file.stem for file in files} == kinds - {"custom"}
    listed = re.findall(r"\((strategies/\w+\.yaml)\)", (ROOT / "examples" / "README.md").read_text())
    assert sorted(listed) == [f"strategies/{file.name}" for file in files]
    for file in files:
        config = load_config(file)
        assert config.strategy.kind == file.stem
        strategy = make_strategy(config.strategy, check_search(config), config.objectives, config.seed, config.base_dir)
        assert len(strategy.ask(config.budget.trials_per_round)) == config.budget.trials_per_round


def kinds_of(section):
    kind = section.model_fields["kind"]
    return get_args(kind.annotation)


def test_the_job_of_the_docs_goes_on_where_it_was(tmp_path):
    (code,) = blocks((ROOT / "docs" / "recovery.md").read_text(), "python")
    (tmp_path / "count.py").write_text(code)
    first, second = (run_forked(["python", "count.py"], tmp_path, os.environ) for _ in range(2))
    for run in (first, second):
        run.check_returncode()
    assert first.stdout == second.stdout
    epochs = int(first.stdout.split()[0])
    assert 1 < epochs <= 20
    names = sorted(path.name for path in (tmp_path / "checkpoints" / "count").iterdir())
    assert names == [f"epoch-{epoch:04d}.safetensors" for epoch in range(epochs - 2, epochs + 1)]
