"""One input, read under watch: seconds, memory, and what is written, started or called elsewhere."""

import os
import resource
import shutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.fuzz.target import Target

SECONDS = 2.0
"""Of processor time that one input may take."""
PEAK_BYTES = 500 * 2**20
"""That the process may have had in memory."""
_PATIENCE = 60  # seconds until a process that does not even take signals is ended
_ROOM = 2**30  # bytes of address space beyond what the process has; more is a MemoryError
_GROWTH = 2**26  # bytes more than before this input: the process may have had much before
_LENGTH = 20_000  # characters of a sentence
_CHANGES = {"os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link", "os.symlink", "os.chmod", "os.truncate"}
_OUTSIDE = {"subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork", "socket.connect", "pty.spawn"}


@dataclass(frozen=True)
class Outcome:
    """What became of an input. A finding has its traceback or what it did; `kind` tells it from others."""

    accepted: bool = False
    finding: str = ""
    kind: str = ""
    seconds: float = 0.0
    peak: int = 0


class HungError(BaseException):
    """An input took too long. No `except Exception` may hold it."""


class _Hook:
    """An audit hook, which Python can't remove: it is set in processes that end with their inputs."""

    def __init__(self) -> None:
        self.folder: str | None = None
        self.broken: list[str] = []
        sys.addaudithook(self)

    def __call__(self, event: str, args: tuple[Any, ...]) -> None:
        if self.folder is None:
            return
        if event in _OUTSIDE:
            self._refuse(f"{event}{args!r:.200}")
        elif event == "open" and args[2] and args[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC):
            self._look(event, args[0])
        elif event in _CHANGES and not any(isinstance(fd, int) and fd > 0 for fd in args[-2:]):  # relative to a folder
            for path in args[: 2 if event in ("os.rename", "os.link") else 1]:
                self._look(event, path)

    def _look(self, event: str, path: Any) -> None:
        if isinstance(path, int) or path == os.devnull:
            return
        place = os.path.realpath(os.fsdecode(path))
        if place != self.folder and not place.startswith(f"{self.folder}/"):
            self._refuse(f"{event} of {place}")

    def _refuse(self, what: str) -> None:
        self.broken.append(what)
        raise PermissionError(f"the watch refuses {what}")


_hooks: list[_Hook] = []


def read(target: Target, data: bytes) -> Outcome:
    """Let a target read an input, in a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="nasflow-fuzz-") as around:
        folder = Path(around, "inside").resolve()
        folder.mkdir()
        began, before = _processor_seconds(), _peak()
        with _watched(folder) as hook:
            outcome = _outcome(target, data, folder)
        seconds, peak = _processor_seconds() - began, _peak()
        left = [path.name for path in Path(around).iterdir() if path.name != folder.name]
        shutil.rmtree(folder, ignore_errors=True)
    if outcome.finding:
        return outcome
    for kind, found in [
        ("outside", "; ".join([*hook.broken, *left])),
        ("memory", f"{peak / 2**20:.0f} MB in memory" if peak > max(PEAK_BYTES, before + _GROWTH) else ""),
    ]:
        if found:
            return Outcome(finding=found, kind=kind, seconds=seconds, peak=peak)
    return Outcome(outcome.accepted, seconds=seconds, peak=peak)


def _outcome(target: Target, data: bytes, folder: Path) -> Outcome:
    try:
        return Outcome(accepted=bool(target.check(data, folder)))
    except target.refusals as error:
        text = str(error)
        clear = text.isprintable() and "Traceback" not in text and 0 < len(text) < _LENGTH
        return Outcome() if clear else Outcome(finding=f"no clear sentence: {text!r:.400}", kind="sentence")
    except HungError:
        return Outcome(finding=f"more than {SECONDS:g} s\n{traceback.format_exc(limit=-8)}", kind="hang")
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        kind = f"{type(error).__name__} in {Path(last.filename).name}:{last.lineno}"
        return Outcome(finding=traceback.format_exc(limit=-8), kind=kind)


@contextmanager
def _watched(folder: Path) -> Iterator[_Hook]:
    def hung(*_: object) -> None:
        raise HungError

    if not _hooks:
        _hooks.append(_Hook())
        sys.dont_write_bytecode = True
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + _ROOM,) * 2)
    hook = _hooks[0]
    home, temporary = os.environ.get("HOME"), tempfile.tempdir
    os.environ["HOME"], tempfile.tempdir = str(folder), str(folder)
    handler = signal.signal(signal.SIGPROF, hung)
    signal.alarm(_PATIENCE)  # its handler is the default one, which ends the process
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    hook.folder, hook.broken = str(folder), []
    try:
        yield hook
    finally:
        hook.folder = None
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.alarm(0)
        signal.signal(signal.SIGPROF, handler)
        os.environ.update({"HOME": home} if home is not None else {})
        tempfile.tempdir = temporary


def _processor_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
