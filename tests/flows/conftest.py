"""Fixtures of the flows' tests."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.flows.searches import PrefectServer, Searches, start_prefect_server


@pytest.fixture(scope="session")
def prefect_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrefectServer]:
    """One server for the session."""
    with start_prefect_server(tmp_path_factory.mktemp("prefect")) as server:
        yield server


@pytest.fixture(scope="module")
def undisturbed(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, prefect_server: PrefectServer
) -> list[dict[str, Any]]:
    """The leaderboard of the search of the module's CONFIG when no one disturbs it."""
    searches = Searches(tmp_path_factory.mktemp("undisturbed"), prefect_server)
    searches.write("search", **request.module.CONFIG)
    searches.run("run", "search.yaml")
    leaderboard: list[dict[str, Any]] = searches.json("leaderboard", "search")
    return leaderboard


@pytest.fixture
def searches(tmp_path: Path, prefect_server: PrefectServer) -> Searches:
    """`nasflow` in a fresh folder."""
    return Searches(tmp_path, prefect_server)
