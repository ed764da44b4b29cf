"""A store is looked at without being changed."""

import sqlite3
from pathlib import Path

import pytest
from sqlalchemy import update

from nasflow.errors import StudyError
from nasflow.study.database.store import SCHEMA_VERSION, SchemaRow, Store
from nasflow.study.database.store_check import look_at_store


def made(url: str, version: int = SCHEMA_VERSION) -> None:
    store = Store(url, create=True)
    with store.write("schema") as session:
        session.execute(update(SchemaRow).values(version=version))
    store.close()


def test_before_and_after_the_first_search(store_url: str) -> None:
    before = look_at_store(store_url)
    assert "the first search makes " in before
    made(store_url)
    assert look_at_store(store_url).endswith(f"can be written; its tables have version {SCHEMA_VERSION}")


def test_it_brings_nothing_up_to_date(store_url: str) -> None:
    made(store_url, version=1)
    assert [look_at_store(store_url)[-9:] for _ in range(2)] == ["version 1"] * 2


def test_a_newer_one_is_refused(store_url: str) -> None:
    made(store_url, version=99)
    with pytest.raises(StudyError, match=r"newer nasflow \(its tables have version 99.*upgrade nasflow"):
        look_at_store(store_url)


def test_a_server_that_only_lets_one_read(postgresql_server: str) -> None:
    url = f"{postgresql_server}&options=-cdefault_transaction_read_only%3Don"
    with pytest.raises(StudyError, match=r"is read-only .*set it to off"):
        look_at_store(url)


def test_a_server_without_the_database(postgresql_server: str) -> None:
    with pytest.raises(StudyError, match='database "none-such" does not exist'):
        look_at_store(postgresql_server.replace("/postgres?", "/none-such?"))


def test_no_server(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match=r"can't be used: .*"):
        look_at_store(f"postgresql://me:hidden@/studies?host={tmp_path}")


@pytest.mark.parametrize("content", [b"no database at all" * 100, b"SQLite format 3\0" + bytes(5000)])
def test_a_file_that_is_no_database(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "studies.db"
    file.write_bytes(content)
    with pytest.raises(StudyError, match="is no database that can be read"):
        look_at_store(f"sqlite:///{file}")
    assert file.read_bytes() == content


def test_another_ones_database(tmp_path: Path) -> None:
    file = tmp_path / "other.db"
    connection = sqlite3.connect(file)
    connection.execute("CREATE TABLE things (name)")
    connection.close()
    before = file.read_bytes()
    assert "holds no studies yet" in look_at_store(f"sqlite:///{file}")
    assert file.read_bytes() == before


def test_a_locked_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "studies.db"
    made(f"sqlite:///{file}")
    monkeypatch.setattr("nasflow.study.database.store_check._PATIENCE", 0.1)
    holder = sqlite3.connect(file, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    with pytest.raises(StudyError, match="was locked for"):
        look_at_store(f"sqlite:///{file}")
    holder.close()
    assert "can be written" in look_at_store(f"sqlite:///{file}")
