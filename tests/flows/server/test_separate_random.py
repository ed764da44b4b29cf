"""Prefect's client draws nothing from Python's global random generator."""

import asyncio
import random

from prefect.utilities.math import bounded_poisson_interval, clamped_poisson_interval
from websockets.asyncio.client import connect
from websockets.asyncio.server import ServerConnection, serve

from nasflow.flows import search


async def _ping() -> None:
    async def listen(connection: ServerConnection) -> None:
        await connection.wait_closed()

    async with serve(listen, "127.0.0.1", 0) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        async with connect(f"ws://127.0.0.1:{port}") as connection:
            await (await connection.ping())


def test_pings_and_pauses() -> None:
    assert search is not None  # imported, as in a process that searches
    before = random.getstate()
    asyncio.run(_ping())
    assert {clamped_poisson_interval(1.0) for _ in range(3)} & {bounded_poisson_interval(1.0, 2.0)} == set()
    is_same = random.getstate() == before
    assert is_same  # the states have hundreds of numbers
