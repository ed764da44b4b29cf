"""A search in the process of a notebook or a script: what it leaves there, and what is done with its results."""

import json

from tests.flows.forked_commands import run_forked
from tests.flows.searches import Searches

_DATA = """
import random

import numpy
import torch
from nasflow.evaluator.data import DigitsRows

def data():
    torch.rand(1), numpy.random.rand(), random.random()
    return DigitsRows()

def build(pick):
    return torch.nn.Sequential(torch.nn.Linear(64, pick("width", [8, 16])), torch.nn.LazyLinear(10))
"""
_NOTEBOOK = """
import json
import logging
import os
import random
import warnings

import numpy
import optuna
import pytorch_lightning
import torch
from nasflow.config import SearchConfig
from nasflow.flows import search

def state():
    return {
        "torch": torch.get_rng_state().tolist(),
        "numpy": [str(part) for part in numpy.random.get_state()],
        "random": str(random.getstate()),
        "filters": [str(one) for one in warnings.filters],
        "Lightning": logging.getLogger("pytorch_lightning").level,
        "Optuna": optuna.logging.get_verbosity(),
    }

config = SearchConfig(
    name="here",
    space={"target": "mine.py:build"},
    evaluator={"kind": "classification", "data": {"target": "mine.py:data"}, "epochs": 1},
    strategy={"kind": "tpe"},
    budget={"rounds": 1, "trials_per_round": 2},
    training_service={"kind": "debug"},
)
before = state()
result = search(config)
after = state()
print(json.dumps([key for key in before if before[key] != after[key]]))
os.mkdir("elsewhere")
os.chdir("elsewhere")
print(json.dumps([str(result.best.export("out")), len(result.trials()), len(search(config).trials()), os.listdir()]))
"""


def test_a_search_leaves_the_state_of_its_process(searches: Searches) -> None:
    (searches.folder / "mine.py").write_text(_DATA)
    (searches.folder / "notebook.py").write_text(_NOTEBOOK)
    ended = run_forked(["python", "notebook.py"], searches.folder, searches.server.env)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    changed, found = map(json.loads, ended.stdout.splitlines()[-2:])
    assert changed == []
    assert found == ["out", 2, 2, ["out"]]
    for noise in ("available:", "does not have many workers", "A new study created"):
        assert noise not in ended.stdout + ended.stderr
