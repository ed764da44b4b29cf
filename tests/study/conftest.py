"""A store of each kind, and a study in it."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nasflow.config.search import SearchConfig, parse_config
from nasflow.study.study import Study


@pytest.fixture
def make_config(store_url: str, tmp_path: Path) -> Callable[..., SearchConfig]:
    """A config in the store, with changed keys."""

    def make(**changes: Any) -> SearchConfig:
        values = {
            "name": "digits",
            "space": {"target": "nasflow.space.ready:mlp", "params": {"classes": 10}},
            "evaluator": {"kind": "classification", "data": {"target": "nasflow.evaluator.data:Digits"}, "epochs": 4},
            "store": store_url,
            "work_dir": tmp_path / "runs",
            "base_dir": tmp_path,
        }
        return parse_config({**values, **changes})

    return make


@pytest.fixture
def open_study(make_config: Callable[..., SearchConfig]) -> Iterator[Callable[..., Study]]:
    """Open a study with changed config keys; all are closed at the end."""
    studies: list[Study] = []

    def open(**changes: Any) -> Study:
        studies.append(Study.open(make_config(**changes)))
        return studies[-1]

    yield open
    for study in studies:
        study.close()


@pytest.fixture
def study(open_study: Callable[..., Study]) -> Study:
    """A new study."""
    return open_study()
