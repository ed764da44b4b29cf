"""Faults of the servers that a search uses: Prefect's, away, slow or broken; PostgreSQL, restarted or cut off."""

import random
import signal
import time
from http import HTTPStatus

from tests.faults.processes import Strike
from tests.faults.proxy import SLOW_SECONDS
from tests.faults.scene import Missed, Scene
from tests.postgresql import PostgresqlServer

AWAY_SECONDS = 300.0
_BROKEN = [
    HTTPStatus.INTERNAL_SERVER_ERROR,
    HTTPStatus.BAD_GATEWAY,
    HTTPStatus.SERVICE_UNAVAILABLE,
    HTTPStatus.GATEWAY_TIMEOUT,
]
_IN_TRANSACTION = "xact_start IS NOT NULL AND pid <> pg_backend_pid() AND backend_type = 'client backend'"


def prefect(how: str) -> Strike:
    """The Prefect server is `away`, `slow` or `broken` (5xx) for a while."""

    def strike(scene: Scene, rng: random.Random) -> str:
        if scene.proxy is None:
            raise Missed("there is no proxy before the Prefect server")
        mode: str | HTTPStatus = {"away": "cut", "slow": "slow"}.get(how) or rng.choice(_BROKEN)
        seconds = scene.pause(rng, 5.0, 30.0) if how != "away" else 6.0 if scene.brief else AWAY_SECONDS
        with scene.proxy.switched(mode):
            scene.search.tend_for(seconds, silent=True)
        words = {"cut": "was away", "slow": f"took {SLOW_SECONDS:.0f} s an answer"}
        return f"the Prefect server {words.get(str(mode), f'answered {mode}')} for {seconds:.0f} s"

    return strike


def restart_postgresql(scene: Scene, rng: random.Random) -> str:
    """The PostgreSQL server is ended, at once or by a crash, and started again after a while."""
    server = _server(scene)
    how = rng.choice([signal.SIGINT, signal.SIGQUIT])  # "fast": transactions are rolled back; "immediate": a crash
    seconds = scene.pause(rng, 0.0, 8.0)
    server.stop(how)
    try:
        scene.search.tend_for(seconds, silent=True)
    finally:
        server.start()
    return f"ended PostgreSQL by {how.name}, and started it again after {seconds:.1f} s"


def cut_postgresql(scene: Scene, rng: random.Random) -> str:
    """Connections to PostgreSQL are cut within their transactions."""
    import psycopg

    search = scene.search
    deadline = time.monotonic() + 20
    with psycopg.connect(_server(scene).url, autocommit=True) as connection:
        while True:
            query = f"SELECT query, pg_terminate_backend(pid) FROM pg_stat_activity WHERE {_IN_TRANSACTION}"
            if cut := connection.execute(query).fetchall():
                return f"cut {len(cut)} connections in mid-transaction, after: {' '.join(cut[0][0].split())[:60]}"
            if search.ended or time.monotonic() > deadline:
                raise Missed("no transaction to cut")
            search.tend_for(rng.uniform(0.0, 0.005))


def _server(scene: Scene) -> PostgresqlServer:
    if scene.postgresql is None:
        raise Missed("the search's store is not PostgreSQL")
    return scene.postgresql
