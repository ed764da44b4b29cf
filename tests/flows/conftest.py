"""Fixtures of the flows' tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from flow_searches import PrefectServer, Searches, start_prefect_server


@pytest.fixture(scope="session")
def prefect_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrefectServer]:
    """One server for the session."""
    with start_prefect_server(tmp_path_factory.mktemp("prefect")) as server:
        yield server


@pytest.fixture
def searches(tmp_path: Path, prefect_server: PrefectServer) -> Searches:
    """`nasflow` in a fresh folder."""
    return Searches(tmp_path, prefect_server)
