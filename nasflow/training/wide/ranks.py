"""The processes of a trial's ranks, as the job's process sees them: they begin, report, and end together."""

import contextlib
import ctypes
import json
import multiprocessing
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from nasflow.errors import InfrastructureError, TrialError
from nasflow.training.wide.link import Link

_POLL = 0.05  # seconds
_CAUSE_WITHIN = 5.0  # seconds after the first sign that a rank has ended, until the other signs are there
_LEAVES = 60.0  # seconds in which ranks may end by themselves
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


class Ranks:
    """Forks of this process, one a rank. If one ends, or this process does, so do all.

    Args:
        count: how many.
        main: what a rank does, with its number and its link; it returns once the trial has ended.
        reported: the epochs of the trial on record.
    """

    def __init__(self, count: int, main: Callable[[int, Link], None], reported: int):
        fork = multiprocessing.get_context("fork")
        sys.stdout.flush()
        sys.stderr.flush()
        self._links: list[Connection] = []
        self._processes: list[BaseProcess] = []
        self._errors: dict[int, dict[str, Any]] = {}
        for rank in range(count):
            ours, theirs = fork.Pipe()
            process = fork.Process(
                target=_run, args=(rank, Link(theirs, reported), [*self._links, ours], main, os.getpid())
            )
            process.start()
            theirs.close()
            self._links.append(ours)
            self._processes.append(process)

    def receive(self, look_up: Callable[[], None]) -> dict[str, Any]:
        """Return the next report of rank 0, once all ranks have reported the same.

        Args:
            look_up: called while it waits; what it raises ends the wait.

        Raises:
            TrialError: a rank has raised something.
            InfrastructureError: ranks have lost each other.
        """
        reports: dict[int, dict[str, Any]] = {}
        while len(reports) < len(self._links):
            wait([*self._links, *(process.sentinel for process in self._processes)], _POLL)
            look_up()
            self._read(reports)
            if self._errors or any(process.exitcode is not None for process in self._processes):
                self._tell_cause(reports)
        return reports[0]

    def answer(self, text: bytes) -> None:
        """Answer the report of every rank."""
        for link in self._links:
            with contextlib.suppress(OSError):  # it has ended: the next look shows how
                link.send_bytes(text)

    def leave(self) -> None:
        """Wait until all have ended by themselves."""
        deadline = time.monotonic() + _LEAVES
        for process in self._processes:
            process.join(max(0.0, deadline - time.monotonic()))

    def end(self) -> None:
        """End those that still run."""
        for process in self._processes:
            process.kill()
        for process, link in zip(self._processes, self._links, strict=True):
            process.join()
            link.close()

    def _read(self, reports: dict[int, dict[str, Any]]) -> None:
        for rank, link in enumerate(self._links):
            if rank in self._errors:
                continue
            with contextlib.suppress(EOFError, OSError):  # it has ended
                while link.poll():
                    told = json.loads(link.recv_bytes())
                    (self._errors if "error" in told else reports)[rank] = told

    def _tell_cause(self, reports: dict[int, dict[str, Any]]) -> None:
        """Raise what made the first rank fail: the others fail because they have lost it. Or end as it has ended."""
        deadline = time.monotonic() + _CAUSE_WITHIN
        while time.monotonic() < deadline and any(process.exitcode is None for process in self._processes):
            time.sleep(_POLL)
        self._read(reports)
        errors = sorted(self._errors.values(), key=lambda told: float(told["at"]))
        own = [told for told in errors if not told["is_lost_peer"]]
        silent = [p.exitcode for rank, p in enumerate(self._processes) if rank not in self._errors]
        self.end()
        if own:
            raise (InfrastructureError if own[0]["is_infrastructure"] else TrialError)(own[0]["error"])
        for code in silent:
            if code is not None:
                _end_as(code)
        raise InfrastructureError(f"the processes of a trial have lost each other: {errors[0]['error']}")


def _run(rank: int, link: Link, others: list[Connection], main: Callable[[int, Link], None], parent: int) -> None:
    """Be a rank, in its own process."""
    for number in (signal.SIGTERM, signal.SIGINT):  # the job's process is asked, and ends this one
        signal.signal(number, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it ended before the kernel knew
        os._exit(1)
    for other in others:
        other.close()
    code = 0
    try:
        main(rank, link)
    except (Exception, SystemExit) as error:
        link.tell_error(error)
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # what the job does at its end is not for its ranks


def _end_as(code: int) -> None:
    """End this process as a rank has ended, so that it is judged as that of any job."""
    sys.stdout.flush()
    sys.stderr.flush()
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with contextlib.suppress(OSError, ValueError):  # those that can't be caught
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code or 1)
