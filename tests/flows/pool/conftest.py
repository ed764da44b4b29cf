"""Work pools with real process workers, on a Prefect server of their own: services make an automation there."""

from collections.abc import Iterator

import psycopg
import pytest

from tests.flows.pool.pools import Pools, use
from tests.flows.searches import PrefectProcess, PrefectServer
from tests.postgresql import for_prefect


@pytest.fixture(scope="session")
def prefect_process(tmp_path_factory: pytest.TempPathFactory, postgresql_server: str) -> Iterator[PrefectProcess]:
    """A server for the session, which can be ended and started again.

    Its database is PostgreSQL: workers, flow runs and services write at once, for which SQLite locks too long.
    """
    with psycopg.connect(postgresql_server, autocommit=True) as connection:
        connection.execute("CREATE DATABASE pools")
    url = for_prefect(postgresql_server, "pools")
    extra = {"PREFECT_FLOWS_HEARTBEAT_FREQUENCY": "30", "PREFECT_SERVER_DATABASE_CONNECTION_URL": url}
    process = PrefectProcess(tmp_path_factory.mktemp("prefect"), extra)
    try:
        process.start()
        yield process
    finally:
        process.end()


@pytest.fixture(scope="session")
def prefect_server(prefect_process: PrefectProcess) -> PrefectServer:
    """The same, for those who use it only."""
    return prefect_process.server


@pytest.fixture(scope="session")
def pools(tmp_path_factory: pytest.TempPathFactory, prefect_server: PrefectServer) -> Pools:
    """Pools on the session's server."""
    return Pools(tmp_path_factory.mktemp("workers"), prefect_server)


@pytest.fixture
def uses_server(prefect_server: PrefectServer) -> Iterator[None]:
    """This process, all of its threads and its children use the session's server."""
    with use(prefect_server):
        yield
