"""A proxy between a search and the Prefect server: it passes everything on, slowly, or not at all."""

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http import HTTPStatus

SLOW_SECONDS = 3.0
_LARGEST = 2**16


class Proxy:
    """Passes connections to a port of this machine on, by a thread of its own.

    Args:
        port: of the server behind it.

    Attributes:
        port: its own.
    """

    def __init__(self, port: int):
        self._behind = port
        self._mode: str | HTTPStatus = "pass"
        self._connections: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._socket.getsockname()[1]
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._thread.start()
        asyncio.run_coroutine_threadsafe(asyncio.start_server(self._connect, sock=self._socket), self._loop).result()

    def switch(self, mode: "str | HTTPStatus") -> None:
        """Cut all connections, and from now on `pass` new ones on, `slow` (an answer takes 3 s) or `cut` them.

        A status answers every request with it; `mute` passes requests on, and cuts before their answers.
        """

        def cut() -> None:
            self._mode = mode
            for connection in self._connections:
                connection.cancel()

        self._loop.call_soon_threadsafe(cut)

    @contextmanager
    def switched(self, mode: "str | HTTPStatus") -> Iterator[None]:
        """Within it, the proxy does so; then it passes everything on again."""
        self.switch(mode)
        try:
            yield
        finally:
            self.switch("pass")

    def close(self) -> None:
        """End it, and all connections."""
        self.switch("cut")
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._socket.close()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        with suppress(OSError, EOFError, asyncio.CancelledError):
            try:
                if isinstance(self._mode, HTTPStatus):
                    await _refuse(reader, writer, self._mode)
                elif self._mode != "cut":
                    await self._pass_on(reader, writer)
            finally:
                self._connections.discard(task)
                writer.close()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, behind = await asyncio.open_connection("127.0.0.1", self._behind)
        asked = asyncio.Event()
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._forward(reader, behind, asked))
                group.create_task(self._answer(there, writer, asked))
        except* OSError:
            pass
        finally:
            behind.close()

    async def _forward(self, reader: asyncio.StreamReader, behind: asyncio.StreamWriter, asked: asyncio.Event) -> None:
        while data := await reader.read(_LARGEST):
            asked.set()
            behind.write(data)
            await behind.drain()
        behind.close()

    async def _answer(self, there: asyncio.StreamReader, writer: asyncio.StreamWriter, asked: asyncio.Event) -> None:
        while data := await there.read(_LARGEST):
            if self._mode == "mute":
                break
            if self._mode == "slow" and asked.is_set():
                await asyncio.sleep(SLOW_SECONDS)
            asked.clear()
            writer.write(data)
            await writer.drain()
        writer.close()


async def _refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, status: HTTPStatus) -> None:
    """Answer each request of a connection with a status."""
    while True:
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        _, _, length = head.partition(b"content-length:")
        await reader.readexactly(int(length.split(b"\r\n")[0] or 0))
        writer.write(f"HTTP/1.1 {status.value} {status.phrase}\r\ncontent-length: 0\r\n\r\n".encode())
        await writer.drain()
