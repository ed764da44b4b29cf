"""A check draws numbers, and leaves the generators of a notebook or a script as they were."""

import logging
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from nasflow.config.search import parse_config
from nasflow.errors import ConfigError
from nasflow.evaluator.check import check_search
from nasflow.evaluator.data import DigitsRows


def draw() -> float:
    return float(torch.rand(1)) + np.random.normal() + random.random()


def drawing(fails: bool = False) -> Any:
    draw()
    if fails:
        raise ConfigError("no data today")
    return DigitsRows()


def net(pick: Any) -> torch.nn.Module:
    draw()
    return torch.nn.Sequential(torch.nn.Linear(64, pick("width", [4, 8])), torch.nn.LazyLinear(10))


@pytest.mark.parametrize("fails", [False, True])
def test_a_check_moves_no_generator_and_no_level(fails: bool) -> None:
    config = parse_config(
        {
            "name": "checked",
            "space": {"target": f"{__file__}:net"},
            "evaluator": {
                "kind": "classification",
                "data": {"target": f"{__file__}:drawing", "params": {"fails": fails}},
            },
            "base_dir": str(Path(__file__).parent),
        }
    )
    lightning = logging.getLogger("pytorch_lightning")
    lightning.setLevel(logging.INFO)
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    expected = [draw() for _ in range(3)]
    random.setstate(states[0]), np.random.set_state(states[1]), torch.set_rng_state(states[2])
    np.random.normal()  # keeps a second number for the next call
    after_one = np.random.get_state()
    if fails:
        with pytest.raises(ConfigError, match="no data today"):
            check_search(config)
    else:
        check_search(config)
    assert str(np.random.get_state()) == str(after_one)
    np.random.set_state(states[1])
    assert [draw() for _ in range(3)] == expected
    assert lightning.level == logging.INFO
