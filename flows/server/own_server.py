"""The Prefect server that a command or a called flow starts by itself, or finds running, where the user names none.

A command starts it before it does anything else, and the server comes up while the config is checked and modules are
imported: `start_own_server` first, `use_own_server` before Prefect is used. A flow that a script or a notebook calls
needs `ensure_server` alone (flow_calls.py).
"""

import atexit
import os
import re
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import IO

from nasflow.errors import UserError
from nasflow.system.process_id import process_id

from .defaults import PREFECT_DEFAULTS, servers_dir
from .errors import PrefectApiError
from .in_use import URL, InUse, server_in_use, stop_using_server, use_server

_PROGRAM = "nasflow.flows.server.server_program"
_TIMEOUT = "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS"
_ENDS_WITHIN = 20.0  # seconds; it may be bringing its database to a new version
_LOG_END = 8192  # bytes
_EXCEPTION = re.compile(r"[\w.]*(Error|Exception)\b.*")


class OwnServer:
    """A server that starts, out of reach of Ctrl-C.

    A terminal sends Ctrl-C to all processes of a group. A server that ended with the search could not record how the
    search ended, and Prefect's client would try to reach it for minutes.

    Args:
        idle: it is kept (kept_servers.py), with Prefect's UI, until there was no request for so many minutes; None: it
            ends with this process.
        port: on this machine; 0: any that is free.
        log: the file for what it writes; None: what it writes until it runs is kept for errors, and the rest is shown.

    Raises:
        OSError: the port is taken, or the log can't be written.
    """

    def __init__(self, idle: float | None = None, port: int = 0, log: Path | None = None):
        self.kept = False
        self._began = time.monotonic()
        self._log: IO[bytes] = tempfile.TemporaryFile() if log is None else log.open("w+b")  # noqa: SIM115
        news, told = os.pipe()
        passed = [told] if log else [told, os.dup(2)]
        with socket.socket() as listener:  # its own from now on: clients wait until it answers, and no one takes it
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(("127.0.0.1", port))
            listener.listen(socket.SOMAXCONN)
            self.port: int = listener.getsockname()[1]
            options = [f"--socket={listener.fileno()}", f"--news={told}", f"--port={self.port}"]
            if idle is not None:
                options.append(f"--idle={idle}")
            else:
                options.append(f"--parent={os.getpid()}")
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", _PROGRAM, *options, *(f"--stderr={file}" for file in passed[1:])],
                env={**PREFECT_DEFAULTS, **os.environ},
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                pass_fds=[listener.fileno(), *passed],
                **({"process_group": 0} if idle is None else {"start_new_session": True}),
            )
        for file in passed:
            os.close(file)
        self._news = open(news, "rb")  # noqa: PTH123, SIM115 - until the server says how it started

    @property
    def url(self) -> str:
        """The URL of its API."""
        return f"http://127.0.0.1:{self.port}/api"

    def wait(self) -> bool:
        """Wait until it runs. Returns whether it does; not if Prefect's settings name another server.

        Raises:
            PrefectApiError: it has ended, or takes too long.
        """
        limit = float(os.environ.get(_TIMEOUT) or PREFECT_DEFAULTS[_TIMEOUT])
        if not select.select([self._news], [], [], max(0.0, self._began + limit - time.monotonic()))[0]:
            raise _not_started(f"it does not answer after {limit:.0f} s", f"give it more seconds with {_TIMEOUT}")
        with self._news:
            word, _, rest = self._news.readline().decode(errors="replace").strip().partition(" ")
        self.kept = rest == "kept"
        if word in ("ready", "needless"):
            return word == "ready"
        if word == "failed":
            raise _not_started(rest, "mend this, or set PREFECT_HOME to a folder that can be written")
        self.process.wait()
        raise _not_started(self._last_words(), "mend this, or let 'nasflow doctor' look for the reason")

    def end(self) -> None:
        """End it."""
        self.process.terminate()
        try:
            self.process.wait(_ENDS_WITHIN)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def _last_words(self) -> str:
        """What a server that has ended wrote last: an exception's own line, if there is one."""
        self._log.seek(max(0, self._log.seek(0, os.SEEK_END) - _LOG_END))
        lines = [line.strip() for line in self._log.read().decode(errors="replace").splitlines() if line.strip()]
        said = next((line for line in reversed(lines) if _EXCEPTION.match(line)), lines[-1] if lines else "")
        code = self.process.returncode
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        return f"{said[:300]} ({how})" if said else f"it ended ({how})"


_started: list[OwnServer] = []
_postponed: list[float | None] = []
_starting = threading.RLock()  # only one thread can read what a server says of its start


def start_own_server(idle: float | None = None) -> None:
    """Start a server for this command, unless Prefect's settings name one; or use one that was kept.

    Returns at once. The server ends with this process, or is kept until `idle` minutes without a request.
    """
    if os.environ.get(URL) or _started or use_kept_server():
        return
    if _profiles_may_name_one():
        _postponed.append(idle)  # Prefect says it exactly, once it is imported
    else:
        _start(idle)


def use_kept_server() -> bool:
    """Let Prefect use a kept server (kept_servers.py), unless its settings name one. Returns whether it does."""
    if not server_in_use() and not os.environ.get(URL) and any(servers_dir().glob("*.json")):
        from .kept_servers import kept_server  # noqa: PLC0415 - it may import Prefect

        kept = kept_server()
        if kept is not None and not _is_named():
            use_server(kept.url, kept=True, process=kept.process)
    return server_in_use() is not None


def use_own_server() -> None:
    """Wait for the server that `start_own_server` started, and let Prefect use it; do nothing if there is none.

    Raises:
        PrefectApiError: it did not start.
    """
    with _starting:
        if _postponed and not _started and not _is_named():
            _start(_postponed[-1])
        if not _started or server_in_use():
            return
        if _started[-1].wait():
            use_server(_started[-1].url, _started[-1].kept, process_id(_started[-1].process.pid))
        else:  # Prefect's settings name another
            _started.pop().end()


def ensure_server() -> None:
    """Start a server and let Prefect use it, unless Prefect's settings name one. Replace nasflow's if it has ended.

    Threads that call it at the same time get the same server.

    Raises:
        PrefectApiError: it did not start.
    """
    with _starting:
        ended = _forget_ended()
        if _is_named():
            return
        if ended is not None:
            with suppress(OSError):  # another program has the port
                _start(None, ended.port)  # where Prefect's threads still send logs and events
        start_own_server()
        try:
            use_own_server()
        except PrefectApiError:
            _started.pop().end()  # the next call starts another
            raise


def notice_failed_start() -> None:
    """Raise PrefectApiError if the server that `start_own_server` started has ended; do not wait for it."""
    if _started and not server_in_use() and _started[-1].process.poll():
        _started[-1].wait()


def end_unused_server() -> None:
    """End the server that `start_own_server` started, unless `use_own_server` was called; Prefect may need it else."""
    _postponed.clear()
    if _started and not server_in_use():
        _started.pop().end()


def _start(idle: float | None, port: int = 0) -> None:
    _started.append(OwnServer(port=port) if idle is None else start_kept_server(idle, port))
    _end_at_exit()


@cache  # what is registered first is called last: after what Prefect sends at the end
def _end_at_exit() -> None:
    atexit.register(_end_unless_kept)


def _forget_ended() -> InUse | None:
    """Return the server in use if it has ended, and let Prefect use it no more; None if there is no such server."""
    used = server_in_use()
    if used is None or not used.has_ended():
        return None
    stop_using_server()
    _started.clear()
    return used


def _profiles_may_name_one() -> bool:
    """Whether the file of Prefect's profiles speaks of a server's URL, perhaps in one that is not used."""
    home = Path(os.environ.get("PREFECT_HOME") or "~/.prefect").expanduser()
    file = Path(os.environ.get("PREFECT_PROFILES_PATH") or home / "profiles.toml")
    return file.is_file() and URL.encode() in file.read_bytes()


def _is_named() -> bool:
    """Whether Prefect's settings name a server. Imports Prefect."""
    from prefect.settings import get_current_settings  # noqa: PLC0415 - slow

    return bool(get_current_settings().api.url)


def start_kept_server(idle: float, port: int = 0) -> OwnServer:
    """Start a server that is kept. Raises UserError if the port or the cache folder can't be used."""
    from .kept_servers import log_file  # noqa: PLC0415 - slow

    log = log_file()
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        return OwnServer(idle, port, log)
    except OSError as error:
        what = f"{error.filename}: " if error.filename else f"port {port}: "
        raise UserError(
            f"no server can be kept: {what}{error.strerror}; use another with XDG_CACHE_HOME or --port"
        ) from None


def refuse_named_server() -> None:
    """Raise UserError if the environment names a server."""
    if url := os.environ.get(URL):
        raise UserError(f"{URL} names a server, {url}, which searches use; unset it to start another")


def _end_unless_kept() -> None:
    if _started and not _started[-1].kept:
        _started[-1].end()


def _not_started(saw: str, mend: str) -> PrefectApiError:
    return PrefectApiError(f"Prefect's own server did not start: {saw}", mend)
