"""Mistakes in the config that show before a trial runs."""

from pathlib import Path
from typing import Any

import pytest

from nasflow.config.search import parse_config
from nasflow.errors import ConfigError
from nasflow.evaluator.check import check_search
from tests.training.program.jobs import HERE

TRAIN = {"kind": "function", "target": "functions.py:train"}
RUN = {"kind": "command", "command": ["python", "train.py"]}


def check(tmp_path: Path, evaluator: dict[str, Any], space: str = "net", **changes: Any) -> None:
    values = {"name": "s", "space": {"target": f"functions.py:{space}"}, "evaluator": evaluator, **changes}
    check_search(parse_config({**values, "base_dir": str(HERE), "work_dir": str(tmp_path)}))


@pytest.mark.parametrize(
    ("evaluator", "says"),
    [
        ({**TRAIN, "target": "functions.py:tain"}, "has no 'tain'"),
        ({**TRAIN, "target": "functions.py:MISSING"}, "has no 'MISSING'"),
        ({**TRAIN, "target": "functions.py:np"}, "is not callable; it should be a function that trains a model"),
        ({**TRAIN, "target": "functions.py:without_report"}, "takes no argument 'report', by which it ends an epoch"),
        ({**TRAIN, "target": "functions.py:waits"}, "is async, whose body a call does not run; write a plain function"),
        ({**TRAIN, "target": "functions.py:yields"}, "is a generator, whose body a call does not run"),
        ({**TRAIN, "params": {"rate": 0.1}}, "does not take these params: got an unexpected keyword argument 'rate'"),
        ({**TRAIN, "params": {"model": 1}}, "evaluator.params: 'model' is what nasflow gives to functions.py:train"),
        ({**TRAIN, "target": "functions.py:curved"}, "does not take these params: missing a required argument"),
        ({**TRAIN, "data": {"target": "a.py:b"}}, "data"),
        ({**TRAIN, "precision": "64-true"}, "precision"),
        ({**RUN, "command": ["pythn"]}, "evaluator.command: there is no program 'pythn' that can be run here"),
        ({**RUN, "command": []}, "evaluator.command"),
        ({**RUN, "command": "python train.py"}, "evaluator.command"),
        ({"kind": "command"}, "evaluator.command"),
        ({"kind": "function"}, "evaluator.target"),
    ],
)
def test_one_sentence_says_what_is_wrong(tmp_path: Path, evaluator: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError) as refused:
        check(tmp_path, evaluator)
    assert says in str(refused.value)


def test_a_program_elsewhere_is_not_looked_for_here(tmp_path: Path) -> None:
    service = {"kind": "ssh", "hosts": [{"host": "far"}]}
    check(tmp_path, {**RUN, "command": ["only-there"]}, training_service=service)


def test_what_a_space_gives_is_the_programs_affair(tmp_path: Path) -> None:
    check(tmp_path, RUN, "values")
    with pytest.raises(ConfigError, match=r"functions.py:values gave a dict; it should give an nn.Module"):
        check(tmp_path, TRAIN, "values")
