"""Runs a job in this process, as close as possible to how a separate program would run it."""

import gc
import logging
import sys
import threading
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, ClassVar, TextIO

from nasflow.errors import ServiceError
from nasflow.job.asked_end import ended_when
from nasflow.job.spec import DEVICE_FAULT
from nasflow.system.log_level import log_level

TURN = threading.Lock()
"""Held while a job runs: the random generators, the output and more belong to the process."""
_FAULTS: list[Path] = []  # jobs after which this process can't use its GPU


class RunHere:
    """A job that runs in this process, which another thread may cancel."""

    def __init__(self) -> None:
        self._cancelled, self._ended = threading.Event(), threading.Event()

    @contextmanager
    def under_way(self) -> Iterator[None]:
        """Let the job run, and its end be recorded, in this block."""
        try:
            with ended_when(self._cancelled.is_set):
                yield
        finally:
            self._ended.set()

    def cancel(self) -> None:
        """Ask the job to end at its next batch, and wait for its end."""
        self._cancelled.set()
        self._ended.wait()


def run_here(runner: str, folder: Path) -> int:
    """Run a job, copy everything printed meanwhile to its `job.log`, and return its exit code.

    Args:
        runner: `module:function`.
        folder: the job's folder.

    Raises:
        ServiceError: an earlier job has made the GPU unusable for this process.
    """
    if _FAULTS:
        raise ServiceError(
            "training_service: a job has made the GPU unusable for this process; run the search again, which goes on "
            "where it was, or use kind: local, which gives each job a process of its own"
        )
    with (folder / "job.log").open("a", buffering=1, errors="backslashreplace") as log, _copied_to(log):
        try:
            run = resolve_name(runner)  # before the levels that its imports set are looked at
            with _state_kept():
                code = int(run(folder / "job.json"))
                if code == DEVICE_FAULT:
                    _FAULTS.append(folder)
            return code
        except (Exception, SystemExit):
            traceback.print_exc()
            return DEVICE_FAULT if _FAULTS else 1  # a GPU that can't be used has no generator to restore
        finally:
            gc.collect()  # a module and its trainer refer to each other, and would keep memory until a later collection


class _Tee:
    """A stream that also writes to a log until the log is closed. Otherwise it is the stream, so debuggers work.

    It is never freed: before Python 3.12.10 and 3.13.3, `print` only borrows `sys.stdout`, so a thread that prints
    while another restores the stream would write to freed memory (python/cpython#130163).
    """

    _kept: ClassVar[list["_Tee"]] = []

    def __init__(self, stream: TextIO, log: TextIO):
        self._stream, self._log = stream, log
        self._kept.append(self)

    def write(self, text: str) -> int:
        try:
            self._log.write(text)
        except ValueError:
            if not self._log.closed:
                raise
        return self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def _state_kept() -> Iterator[None]:
    """Restore what a job changes in its process: Lightning's log level, filters of warnings, random generators."""
    from nasflow.system.kept_generators import kept_generators  # noqa: PLC0415 - imports torch

    with log_level("pytorch_lightning", logging.WARNING), warnings.catch_warnings(), kept_generators():
        yield


@contextmanager
def _copied_to(log: TextIO) -> Iterator[None]:
    out: Any = _Tee(sys.stdout, log)
    err: Any = _Tee(sys.stderr, log)
    with redirect_stdout(out), redirect_stderr(err):
        yield
