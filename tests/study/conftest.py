"""A store of each kind, and a study in it."""

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nasflow.config import SearchConfig, parse_config
from nasflow.study.study import Study

_NUMBERS = itertools.count()


@pytest.fixture(params=["sqlite", "postgresql"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty store of each kind; on PostgreSQL a schema of its own, which is quicker to make than a database."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'nasflow.db'}"
    server: str = request.getfixturevalue("postgresql_server")
    psycopg = pytest.importorskip("psycopg")
    name = f"test{next(_NUMBERS)}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA {name}")
    return f"{server}&options=-csearch_path%3D{name}"


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
