"""The processes of a trial's ranks: those of a machine begin and end together; the job's process hears from all."""

import contextlib
import ctypes
import json
import multiprocessing
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from nasflow.errors import InfrastructureError, TrialError
from nasflow.system.memory import KillWatch, memory_limit, peak_bytes
from nasflow.training.wide.link import Link
from nasflow.training.wide.nodes.other_nodes import OtherNodes

_POLL = 0.05  # seconds
_CAUSE_WITHIN = 5.0  # seconds after the first sign that a rank has ended, until the other signs are there
_LEAVES = 60.0  # seconds in which ranks may end by themselves
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_UNHEARD = 117  # the exit code of a rank that could not report its error
_OWN_NEED = 0.5  # of the memory here; if ranks that used less were killed for want of it, others had taken it


class Processes:
    """Forks of this process, one a rank. If this process ends, so do all.

    Args:
        ranks: their numbers.
        main: what a rank does, with its number and the connection that `connect` made for it.
        connect: called in the new process, with its number.
        others: connections of this process that are not for them.
    """

    def __init__(
        self,
        ranks: Sequence[int],
        main: Callable[[int, Link], None],
        connect: Callable[[int], Link],
        others: Sequence[Connection] = (),
    ):
        fork = multiprocessing.get_context("fork")
        sys.stdout.flush()
        sys.stderr.flush()
        self._processes: dict[int, BaseProcess] = {}
        for rank in ranks:
            process = fork.Process(target=_run, args=(rank, connect, others, main, os.getpid()))
            process.start()
            self._processes[rank] = process

    @property
    def sentinels(self) -> list[int]:
        """What becomes ready when one of those ends that still run."""
        return [process.sentinel for process in self._processes.values() if process.exitcode is None]

    def exit_codes(self) -> dict[int, int]:
        """Return how they have ended, those that have."""
        codes = {rank: process.exitcode for rank, process in self._processes.items()}
        return {rank: code for rank, code in codes.items() if code is not None}

    def leave(self) -> None:
        """Wait until all have ended by themselves."""
        deadline = time.monotonic() + _LEAVES
        for process in self._processes.values():
            process.join(max(0.0, deadline - time.monotonic()))

    def end(self) -> None:
        """End those that still run."""
        for process in self._processes.values():
            process.kill()
        for process in self._processes.values():
            process.join()


class Ranks:
    """All ranks of a trial: those of this machine, and those of others if there are any. If one ends, so do all.

    Args:
        count: how many this machine has.
        main: what a rank does, with its number and its link; it returns once the trial has ended.
        reported: the epochs of the trial on record.
        others: the other machines.
    """

    def __init__(self, count: int, main: Callable[[int, Link], None], reported: int, others: OtherNodes | None = None):
        pipes = [multiprocessing.Pipe() for _ in range(count)]
        self._others = others
        self._links = {rank: ours for rank, (ours, _) in enumerate(pipes)} | (others.links if others else {})
        self._errors: dict[int, dict[str, Any]] = {}
        self._count, self._kills = count, KillWatch()

        def connect(rank: int) -> Link:
            for other, (_, theirs) in enumerate(pipes):
                if other != rank:
                    theirs.close()
            return Link(pipes[rank][1], reported, others.interface if others else "lo")

        self._here = Processes(range(count), main, connect, [*self._links.values()])
        for _, theirs in pipes:
            theirs.close()

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
            wait([*self._links.values(), *self._here.sentinels], _POLL)
            look_up()
            self._kills.look()
            self._read(reports)
            if self._errors or self._exit_codes():
                self._tell_cause(reports)
        return reports[0]

    def answer(self, text: bytes) -> None:
        """Answer the report of every rank."""
        for link in self._links.values():
            with contextlib.suppress(OSError):  # it has ended: the next look shows how
                link.send_bytes(text)

    def leave(self) -> None:
        """Wait until all have ended by themselves."""
        self._here.leave()
        if self._others is not None:
            self._others.leave(_LEAVES)

    def end(self) -> None:
        """End those that still run."""
        self._here.end()
        if self._others is not None:
            self._others.end()
        for link in self._links.values():
            link.close()

    def _exit_codes(self) -> Mapping[int, int]:
        return self._here.exit_codes() | (self._others.exit_codes() if self._others is not None else {})

    def _read(self, reports: dict[int, dict[str, Any]]) -> None:
        for rank, link in self._links.items():
            if rank in self._errors:
                continue
            with contextlib.suppress(EOFError, OSError):  # it has ended
                while link.poll():
                    told = json.loads(link.recv_bytes())
                    if "shared" in told:
                        self._share(rank, told)
                    else:
                        (self._errors if "error" in told else reports)[rank] = told

    def _share(self, owner: int, told: dict[str, Any]) -> None:
        """Pass on what a rank gives to all others."""
        for rank, link in self._links.items():
            if rank != owner:
                with contextlib.suppress(OSError):
                    link.send_bytes(json.dumps(told).encode())

    def _tell_cause(self, reports: dict[int, dict[str, Any]]) -> None:
        """Raise what made the first rank fail: the others fail because they have lost it. Or end as it has ended."""
        deadline = time.monotonic() + _CAUSE_WITHIN
        while time.monotonic() < deadline and len(self._exit_codes()) < len(self._links):
            time.sleep(_POLL)
        self._read(reports)
        errors = sorted(self._errors.values(), key=lambda told: float(told["at"]))
        own = [told for told in errors if not told["is_lost_peer"]]
        silent = {rank: code for rank, code in self._exit_codes().items() if rank not in self._errors}
        here = lacking_memory(self._here.exit_codes(), self._kills, self._count)
        lacked = self._others.lacked_memory if self._others is not None else set()
        self.end()
        if own:
            raise (InfrastructureError if own[0]["is_infrastructure"] else TrialError)(own[0]["error"])
        for rank in sorted(silent.keys() & {*here, *lacked}):
            where = "" if rank in here else ", on another machine,"
            raise TrialError(f"MemoryError: the kernel ended rank {rank}{where} for want of memory")
        for code in sorted({*silent.values()} - {_UNHEARD}, key=_is_consequence):
            _end_as(code)
        why = errors[0]["error"] if errors else "a rank could not report its error"
        raise InfrastructureError(f"the processes of a trial have lost each other: {why}")


def lacking_memory(codes: Mapping[int, int], kills: KillWatch, ranks: int) -> list[int]:
    """Return which of the ranks of this machine the kernel has ended for want of memory, if they use most of it.

    Args:
        codes: how ranks have ended.
        kills: the kernel's.
        ranks: how many this machine has.
    """
    held = ranks * peak_bytes(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)  # the largest one's
    if not kills.recent() or held < _OWN_NEED * memory_limit():
        return []
    return [rank for rank, code in codes.items() if code == -signal.SIGKILL]


def _run(
    rank: int,
    connect: Callable[[int], Link],
    others: Sequence[Connection],
    main: Callable[[int, Link], None],
    parent: int,
) -> None:
    """Be a rank, in its own process."""
    for number in (signal.SIGTERM, signal.SIGINT):  # the job's process is asked, and ends this one
        signal.signal(number, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it ended before the kernel knew
        os._exit(1)
    for other in others:
        other.close()
    link = connect(rank)
    code = 0
    try:
        main(rank, link)
    except (Exception, SystemExit) as error:
        code = 1
        try:
            link.tell_error(error)
        except OSError:  # the job's process has ended, or its machine is lost
            code = _UNHEARD
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # what the job does at its end is not for its ranks


def _is_consequence(code: int) -> tuple[bool, bool]:
    """Return a sort key: the greater, the likelier it is that a process ended so because another one had ended."""
    return code in (0, -signal.SIGABRT), code not in (-signal.SIGKILL, -signal.SIGTERM)  # NCCL aborts those left


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
