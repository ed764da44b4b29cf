"""A study with a config that this version can't read costs one line; the others of its store are unaffected."""

from datetime import timedelta
from pathlib import Path

import pytest
from rich.console import Console
from sqlalchemy import select

from nasflow.config.search import parse_config
from nasflow.flows.commands.views import studies_json, studies_table
from nasflow.flows.purge import Purge, purge_studies
from nasflow.flows.recovery.judge import Standing
from nasflow.flows.recovery.resume import look
from nasflow.recurring import best_of_earlier
from nasflow.study.database.store import Store, StudyRow
from nasflow.study.records import RoundState
from nasflow.study.study import Study, list_studies
from tests.flows.searches import HERE

LINE = "study 'search-1': this nasflow can't read the config on record, at 'novelty'; use the version that wrote it"


@pytest.fixture
def store(tmp_path: Path) -> str:
    """A store with three studies, each with one round of one, of which the second can't be read."""
    url = f"sqlite:///{tmp_path}/nasflow.db"
    for number in range(3):
        values = {
            "name": f"search-{number}",
            "space": {"target": "spaces.py:mixed"},
            "evaluator": {"kind": "classification", "data": {"target": "nasflow.evaluator.data:DigitsRows"}},
            "budget": {"rounds": 1, "trials_per_round": 1},
        }
        study = Study.open(parse_config({**values, "store": url, "work_dir": tmp_path, "base_dir": HERE}))
        study.begin_round(0)
        study.end_round(0, RoundState.COMPLETED)
        study.close()
    opened = Store(url)
    with opened.write("") as session:
        row = session.scalars(select(StudyRow).where(StudyRow.name == "search-1")).one()
        row.config = {key: value for key, value in row.config.items() if key != "objectives"} | {"novelty": 1}
    opened.close()
    return url


def test_recover(store: str) -> None:
    said: list[str] = []
    found = look(store, timedelta(0), said.append)
    assert [(one.config.name, one.standing) for one in found] == [
        ("search-0", Standing.WELL),
        ("search-2", Standing.WELL),
    ]
    assert said == [f"search-1: left alone: {LINE}"]


def test_studies(store: str) -> None:
    infos = list_studies(store)
    assert [(one["name"], one["objective"] is None, one["problem"]) for one in studies_json(infos)] == [
        ("search-0", False, None),
        ("search-1", True, LINE),
        ("search-2", False, None),
    ]
    console = Console(width=300)
    with console.capture() as shown:
        console.print(studies_table(infos))
    assert LINE in shown.get()


def test_purge(store: str) -> None:
    said: list[str] = []
    assert not purge_studies(store, Purge("*", older_than_days=0), said.append)
    assert sorted(line.partition(",")[0] for line in said) == [
        "search-0: removed",
        f"search-1: could not be removed: {LINE.partition(',')[0]}",
        "search-2: removed",
    ]


def test_a_warm_start(store: str) -> None:
    study = Study.load(store, "search-0")
    study.close()
    config = study.config.model_copy(update={"name": "search-1"})
    opened = Store(store)
    assert best_of_earlier(opened, config, 3) == []
    opened.close()
