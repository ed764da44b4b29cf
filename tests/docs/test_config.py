"""The examples of docs/config.md work as they stand there, and what it says of defaults is so."""

import random
import re
from pathlib import Path

import pytest
import torch
import yaml

from nasflow.config.search import load_config, parse_config
from nasflow.load_target import load_target
from nasflow.space.space import Space
from nasflow.training.schedule.pruners import make_pruner

TEXT = (Path(__file__).parents[2] / "docs" / "config.md").read_text()
NAMED = re.compile(r"^```(?:python|yaml)\n# (?P<name>[\w.]+)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for block in NAMED.finditer(TEXT):
        (tmp_path / block["name"]).write_text(block["text"])
    return tmp_path


def test_what_is_left_out_is_what_it_says() -> None:
    part = TEXT.partition("## What a short config means")[2].partition("\n## ")[0]
    short, long = (parse_config(yaml.safe_load(text)) for text in re.findall(r"```yaml\n(.*?)```", part, re.DOTALL))
    assert short == long
    for key, value in re.findall(r"`(population|float_steps)` (\d+)", TEXT):
        kind = {"population": "evolution", "float_steps": "grid"}[key]
        strategy = parse_config({**short.model_dump(exclude={"strategy"}), "strategy": {"kind": kind}}).strategy
        assert getattr(strategy, key) == int(value)


def test_its_space_is_one(folder: Path) -> None:
    space = Space.of(load_target("cells.py:build", folder))
    rng = random.Random(0)
    for _ in range(20):
        architecture = space.sample(rng)
        assert {"width", "depth", "act", "join", "cell/node0/op0", "cell/node1/input0"} <= architecture.keys()
        assert space.build(architecture)(torch.zeros(5, 64)).shape == (5, 10)


def test_its_pruner_stops_what_is_far_behind(folder: Path) -> None:
    config = load_config(folder / "margin.yaml")
    pruner = make_pruner(config.pruner, config.objectives, folder)
    assert pruner is not None
    histories = {trial: [{"val_accuracy": accuracy}] for trial, accuracy in enumerate([0.9, 0.8, 0.6])}
    assert pruner.stop([0, 1, 2], histories) == {2}
