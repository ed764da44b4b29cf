"""The program of a Prefect server that nasflow starts: `python -m nasflow.flows.server.server_program`.

It gets a socket that listens already, and a pipe for one line of news: `ready`, `ready kept`, or `needless` where
Prefect's settings name a server, or allow none that ends with its program.
"""

import argparse
import contextlib
import gc
import math
import os
import secrets
import socket
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import uvicorn
from uvicorn._types import ASGI3Application, ASGIReceiveCallable, ASGISendCallable, Scope

from nasflow.system.process_id import process_id, process_table

from .database_template import DatabaseTemplate
from .kept_servers import IDENTITY, KeptServer, remove_record, serving_key, write_record

_CLOSES_WITHIN = 2  # seconds that a server which ends waits for its clients


class Watched:
    """An ASGI application that knows how long nobody asked it for anything, and tells who asks for its identity."""

    def __init__(self, app: Any, token: str):
        self._app, self._token = app, token.encode()
        self._open = 0
        self._last = time.monotonic()

    def idle(self) -> float:
        """Return the seconds since the last request; 0 while a request is answered or a web socket is open."""
        return 0.0 if self._open else time.monotonic() - self._last

    async def __call__(self, scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        """Answer one request."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        self._open += 1
        try:
            if scope["path"] == IDENTITY and scope["type"] == "http":
                await send({"type": "http.response.start", "status": 200, "headers": [], "trailers": False})
                await send({"type": "http.response.body", "body": self._token, "more_body": False})
            else:
                await self._app(scope, receive, send)
        finally:
            self._open -= 1
            self._last = time.monotonic()


class Server(uvicorn.Server):
    """Calls `ready` once it answers and `ended` when it ends.

    It ends after `idle` seconds without a request, and with the process `parent` if that is not None. The kernel could
    tell it of the end of the thread that started it, not of the process.
    """

    def __init__(
        self, app: Watched, idle: float, parent: int | None, ready: Callable[[], None], ended: Callable[[], None]
    ):
        application: ASGI3Application = app
        super().__init__(
            uvicorn.Config(application, log_level="error", lifespan="on", timeout_graceful_shutdown=_CLOSES_WITHIN)
        )
        self._app, self._idle, self._parent, self._ready, self._ended = app, idle, parent, ready, ended

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start."""
        await super().startup(sockets)
        if self.started:
            self._ready()

    async def on_tick(self, counter: int) -> bool:
        """Whether to end."""
        is_left = self._parent not in (None, os.getppid())
        return await super().on_tick(counter) or is_left or self._app.idle() > self._idle

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End. A signal that asked for it ends the process right after this."""
        self._ended()
        await super().shutdown(sockets)


def main() -> None:
    """Run the server until it is ended."""
    options = _options()
    os.environ["PREFECT_SERVER_API_PORT"] = str(options.port)  # its UI asks the API there
    if options.idle is None:  # nobody looks at it
        os.environ.update({"PREFECT_UI_ENABLED": "0", "PREFECT__SERVER_EPHEMERAL": "1", "PREFECT__SERVER_FINAL": "1"})
    else:
        os.environ["PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL"] = "INFO"
    gc.disable()  # nearly all that is imported stays
    from prefect.settings import get_current_settings  # noqa: PLC0415 - once the environment is complete

    settings = get_current_settings()
    if settings.api.url or not (settings.server.ephemeral.enabled or options.idle is not None):
        _tell(options, "needless")
        return
    try:
        app = _application()
    except OSError as error:
        what = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        _tell(options, f"failed {what}")
        sys.exit(1)
    gc.enable()
    gc.freeze()
    _server(options, app).run([socket.socket(fileno=options.socket)])


def _application() -> Any:
    """Return Prefect's server, with a copy of the template as its database if it has none."""
    template = DatabaseTemplate()
    file = _missing_database()
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
    to_make = file is not None and not template.copy_to(file)
    from prefect.server.api.server import create_app  # noqa: PLC0415 - slow; and with these settings

    if file is not None and to_make:
        template.make()
        template.copy_to(file)
    return create_app()


def _missing_database() -> Path | None:
    """Return the file of the database in Prefect's settings if it does not exist; None for any other database."""
    from prefect.settings import PREFECT_API_DATABASE_CONNECTION_URL  # noqa: PLC0415 - as above
    from sqlalchemy import make_url  # noqa: PLC0415 - as above

    url = make_url(str(PREFECT_API_DATABASE_CONNECTION_URL.value()))
    if url.get_backend_name() != "sqlite" or url.query or not url.database or ":memory:" in url.database:
        return None
    file = Path(url.database)
    return None if file.exists() else file


def _server(options: argparse.Namespace, app: Any) -> Server:
    token = secrets.token_hex(16)
    record = _record(options, token) if options.idle is not None else None

    def ready() -> None:
        kept = record is not None and write_record(record)
        if options.stderr is not None:
            os.dup2(options.stderr, 2)
        _tell(options, "ready kept" if kept else "ready")

    def ended() -> None:
        if record is not None:
            remove_record(record)

    return Server(Watched(app, token), 60 * (options.idle or math.inf), options.parent, ready, ended)


def _record(options: argparse.Namespace, token: str) -> KeptServer:
    from prefect.settings import PREFECT_API_DATABASE_CONNECTION_URL  # noqa: PLC0415 - as above
    from sqlalchemy import make_url  # noqa: PLC0415 - as above

    process = process_id(os.getpid())
    assert process is not None, "this process runs"  # noqa: S101 - by definition
    return KeptServer(
        token=token,
        key=serving_key(),
        process=process,
        machine=process_table(),
        port=options.port,
        prefect=version("prefect"),
        database=make_url(str(PREFECT_API_DATABASE_CONNECTION_URL.value())).render_as_string(hide_password=True),
        idle_minutes=options.idle if math.isfinite(options.idle) else None,
    )


def _tell(options: argparse.Namespace, news: str) -> None:
    with contextlib.suppress(BrokenPipeError):  # the command was killed meanwhile; a server that stays goes on
        os.write(options.news, f"{news}\n".encode())
    os.close(options.news)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--socket", type=int, required=True, help="a listening socket")
    parser.add_argument("--news", type=int, required=True, help="a pipe")
    parser.add_argument("--port", type=int, required=True, help="of the socket")
    parser.add_argument("--stderr", type=int, help="where errors go once it runs")
    parser.add_argument("--parent", type=int, help="the process with which it ends")
    parser.add_argument("--idle", type=float, help="it is kept, and ends after so many minutes without a request")
    return parser.parse_args()


if __name__ == "__main__":
    main()
