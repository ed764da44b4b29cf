"""Fixtures of the flows' tests."""

import fcntl
import hashlib
import json
import os
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
    """The leaderboard of the search of the module's CONFIG when no one disturbs it; of equal ones there is one."""
    config = json.dumps(request.module.CONFIG, sort_keys=True)
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base  # by all processes of this run
    known = shared / f"undisturbed-{hashlib.sha256(config.encode()).hexdigest()[:16]}.json"
    with known.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not known.exists():
            searches = Searches(tmp_path_factory.mktemp("undisturbed"), prefect_server)
            searches.write("search", **request.module.CONFIG)
            searches.run("run", "search.yaml")
            known.write_text(json.dumps(searches.json("leaderboard", "search")))
        leaderboard: list[dict[str, Any]] = json.loads(known.read_text())
    return leaderboard


@pytest.fixture
def searches(tmp_path: Path, prefect_server: PrefectServer) -> Searches:
    """`nasflow` in a fresh folder."""
    return Searches(tmp_path, prefect_server)
