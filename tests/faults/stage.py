"""What all searches of a campaign use: the servers, and the means to disturb them."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.faults import shim
from tests.faults.broken_disk import BrokenDisk
from tests.faults.clock import Clock
from tests.faults.proxy import Proxy
from tests.flows.searches import PrefectProcess
from tests.postgresql import PostgresqlServer


@dataclass(frozen=True)
class Stage:
    """What there is for searches. None: not here.

    Attributes:
        server: of Prefect.
        proxy: before it, for the searches.
        postgresql: a server for stores.
        environment: environment variables of the searches, so that clock, disk and proxy have an effect on them.
    """

    server: PrefectProcess
    proxy: Proxy
    postgresql: PostgresqlServer | None
    clock: Clock | None
    broken_disk: BrokenDisk | None
    environment: dict[str, str]


@contextmanager
def staged(folder: Path) -> Iterator[Stage]:
    """All of it, within this; its files are in `folder`."""
    home = folder / "prefect"
    home.mkdir()
    shims = not shim.lacking()
    clock = Clock(folder / "clock") if shims else None
    disk = BrokenDisk(folder / "disk") if shims else None
    with ExitStack() as stack:
        server = PrefectProcess(home, clock.environment if clock else {})
        stack.callback(server.end)
        server.start()
        proxy = Proxy(server.port)
        stack.callback(proxy.close)
        database = None if PostgresqlServer.lacking() else PostgresqlServer()
        if database:
            stack.callback(database.close)
        environment = shim.together([clock.environment, disk.environment] if clock and disk else [])
        environment["PREFECT_API_URL"] = f"http://127.0.0.1:{proxy.port}/api"
        yield Stage(server, proxy, database, clock, disk, environment)
