"""The program of workers: `python -m nasflow.training_service.local.worker ROOT SLOT`, started by the local service.

It imports what jobs need once. It then forks a worker for each slot, or is itself the worker of the only slot. A worker
forks a process for each job (like Android's zygote); with `--fresh` that process executes a new program. The worker
never computes with torch itself, because a process that has started torch's threads or a GPU must not fork. It adopts
the orphans of its job, so it can end everything the job started, however the job ends.
"""

import argparse
import faulthandler
import importlib
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NoReturn

from nasflow.config.secrets import give, given
from nasflow.gc_control import freeze_shared, uncollected
from nasflow.job.spec import job_dir
from nasflow.load_target import load_target
from nasflow.training_service.base import JobState, JobStatus
from nasflow.training_service.local.fork import fork_workers, write_to
from nasflow.training_service.local.state import LocalState
from nasflow.training_service.machine.memory import KillWatch, memory_limit, peak_bytes
from nasflow.training_service.machine.processes import (
    adopt_orphans,
    be_first_to_die_for_memory,
    descendants,
    die_with_parent,
    end_all,
)

IDLE_POLL, JOB_POLL = 0.03, 0.01  # seconds
GRACE = 2.0  # seconds between SIGTERM and SIGKILL


class Heartbeat:
    """Detects that no controller has called for more than `patience` seconds; None for no limit."""

    def __init__(self, file: Path, patience: float | None):
        self._file, self.patience = file, patience
        self._latest, self._since = self._beat(), time.monotonic()

    def stopped(self) -> bool:
        """Whether the time is over. Call this often. Counts from creation, by a monotonic clock."""
        if self.patience is None:
            return False
        beat, now = self._beat(), time.monotonic()
        if beat != self._latest:
            self._latest, self._since = beat, now
        return now - self._since > self.patience

    def _beat(self) -> int | None:
        try:
            return self._file.stat().st_mtime_ns
        except FileNotFoundError:
            return None


class Worker:
    """Takes jobs from the queue, one at a time.

    It stops when it is asked to, after `idle_timeout` seconds without work, or after `abandoned_after` seconds without
    a call of a controller.
    """

    def __init__(
        self, root: Path, slot: str, runner: str, idle_timeout: float, *, fresh: bool, abandoned_after: float | None
    ):
        self._state = LocalState(root)
        self._root, self._slot, self._runner, self._idle_timeout = root, slot, runner, idle_timeout
        self._fresh, self._heartbeat = fresh, Heartbeat(self._state.controller, abandoned_after)
        self._why_end = ""

    def tell_to_end(self, *_: object) -> None:
        """Handle a signal: end the job, if any, and then this process."""
        self._why_end = self._why_end or "its worker was asked to end"

    def serve(self) -> None:
        """Run jobs until it is time to stop."""
        with self._state.lock():
            if self._dismissed():
                return
            self._state.ready(self._slot).touch()
        idle_since = time.monotonic()
        while True:
            idle = time.monotonic() - idle_since > self._idle_timeout
            if idle or self._must_end() or self._state.news(self._slot):
                with self._state.lock():
                    if self._dismissed():
                        return
                    leave = bool(self._must_end()) or self._state.retire(self._slot).exists()
                    job_id = None if leave else self._state.claim(self._slot)
                    slots = len(self._state.workers())
                    if job_id is None and (leave or idle):
                        self._state.dismiss(self._slot)
                        return
                if job_id is not None:
                    self._run(job_id, slots)
                    idle_since = time.monotonic()
                    continue
            time.sleep(IDLE_POLL)

    def _must_end(self) -> str:
        """Return why this process must end; empty if it need not."""
        if not self._why_end and self._heartbeat.stopped():
            self._why_end = f"no controller has called for {self._heartbeat.patience:g} s"
        return self._why_end

    def _dismissed(self) -> bool:
        """Whether the service removed the record of this worker, or never wrote it."""
        record = self._state.worker(self._slot)
        return record is None or record.process.pid != os.getpid()

    def _run(self, job_id: str, slots: int) -> None:
        folder = job_dir(self._root, job_id)
        cancel = self._state.cancel_mark(job_id)
        state = run_in_child(
            folder / "job.log",
            partial(self._work, folder / "job.json"),
            lambda: self._must_end() or ("it was cancelled" if cancel.exists() else ""),
            memory_limit() // slots,
            self._slot,
        )
        with self._state.lock():
            if not self._dismissed():
                self._state.settle(job_id, state)
                self._state.drop_claim(self._slot, job_id)

    def _work(self, job: Path) -> int:
        """Run the job, in its own process, and return its exit code; with `fresh`, execute another program instead."""
        if self._fresh:
            program = [sys.executable, "-P", "-X", "faulthandler", "-m", "nasflow.training_service.local.job_program"]
            give_by_standard_input()
            os.execv(program[0], [*program, self._runner, str(job)])  # noqa: S606
        return int(load_target(self._runner, self._root)(job))


def give_by_standard_input() -> None:
    """Let the program that this process executes next read its secrets there, as one line of JSON."""
    reading, writing = os.pipe()
    os.write(writing, json.dumps(dict(given())).encode() + b"\n")
    os.close(writing)
    os.dup2(reading, 0)
    os.close(reading)


def run_in_child(
    log: Path, run: Callable[[], int], told_to_end: Callable[[], str], memory_share: int, slot: str | None = None
) -> JobState:
    """Run a job in a forked child, end all processes it left, and return how it ended.

    This process must adopt orphans and have no threads.

    Args:
        log: the job's output is appended to it.
        run: runs the job and returns its exit code.
        told_to_end: polled; once it returns a reason, the job is ended and LOST for that reason.
        memory_share: memory in bytes that the job can use without taking from others.
        slot: where it runs.
    """
    kills = KillWatch()
    flush()
    worker, child = os.getpid(), os.fork()
    if child == 0:
        become_job(worker, log, run)
    while (end := reap(child)) is None and not (why := told_to_end()):
        kills.look()
        time.sleep(JOB_POLL)
    oom_kills = kills.recent()
    end_all(lambda: descendants(worker), GRACE)
    reap(child)
    if end is None:
        return JobState(status=JobStatus.LOST, slot=slot, reason=why)
    return JobState(
        status=JobStatus.EXITED,
        exit_code=end.code if end.code >= 0 else None,
        signal=-end.code if end.code < 0 else None,
        slot=slot,
        reason=last_line(log),
        oom_kills=oom_kills,
        peak_rss=end.peak,
        memory_share=memory_share,
    )


def become_job(worker: int, log: Path, run: Callable[[], int]) -> NoReturn:
    """In the forked child: become an ordinary process, run the job, and exit without the worker's clean-up."""
    code = 1
    try:
        try:
            os.setsid()
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            die_with_parent(worker)
            be_first_to_die_for_memory()
            file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            os.dup2(file, 1)
            os.dup2(file, 2)
            os.close(file)
            faulthandler.enable()  # a crash in native code prints the Python traceback
            code = run()
        except SystemExit as leave:
            if isinstance(leave.code, str):
                sys.stderr.write(leave.code + "\n")
            code = leave.code if isinstance(leave.code, int) else int(leave.code is not None)
        except BaseException:
            traceback.print_exc()
        flush()
    finally:
        os._exit(code & 0xFF)


@dataclass(frozen=True)
class End:
    """How a process ended: exit code (negative for a signal), and peak memory in bytes of it or a descendant."""

    code: int
    peak: int


def reap(child: int) -> End | None:
    """Reap the children that ended, and return the end of `child` if it is among them."""
    end = None
    while True:
        try:
            pid, status, usage = os.wait4(-1, os.WNOHANG)
        except ChildProcessError:
            return end
        if pid == 0:
            return end
        if pid == child:
            end = End(os.waitstatus_to_exitcode(status), peak_bytes(usage.ru_maxrss))


def last_line(log: Path) -> str:
    """Return the last non-empty line of a log, cut to 300 characters."""
    if not log.exists():
        return ""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - 4096))
        lines = [line.strip() for line in file.read().decode(errors="replace").splitlines()]
    return next((line[:300] for line in reversed(lines) if line), "")


def flush() -> None:
    """Flush standard output and error."""
    sys.stdout.flush()
    sys.stderr.flush()


def warm_up(modules: list[str], runner: str, root: Path) -> None:
    """Import what jobs need, once. If an import fails, the job repeats it, and its log shows why."""
    with uncollected():
        try:
            for name in modules:
                importlib.import_module(name)
            load_target(runner, root)
        except Exception:
            traceback.print_exc()
    freeze_shared()


def await_orders() -> None:
    """Wait until the service uses this process and sends the import path, and secrets that jobs need.

    If the service ends first, so does this process.
    """
    line = sys.stdin.readline()
    if not line:
        sys.exit()
    orders = json.loads(line)
    give(orders["secrets"])
    path = orders["import_path"]
    os.environ["PYTHONPATH"] = path
    sys.path += [place for place in path.split(os.pathsep) if place and place not in sys.path]


def enter_root(state: LocalState, slot: str) -> None:
    """Move to the root, which may not have existed when this process was started, with what was printed so far."""
    os.chdir(state.root)
    flush()
    with open(1, "rb", closefd=False) as said:
        said.seek(0)
        text = said.read()
    write_to(state, slot)
    os.write(1, text)


def main() -> None:
    """Read the command line and serve."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("root", type=Path)
    parser.add_argument("slot")
    parser.add_argument("--also", nargs="*", default=[], metavar="SLOT", help="more slots, each with its own worker")
    parser.add_argument("--runner", default="nasflow.training.runner:run_job_file", help="module:function")
    parser.add_argument("--preload", nargs="*", default=[], help="modules to import before the first job")
    parser.add_argument("--idle-timeout", type=float, default=600.0, help="seconds")
    parser.add_argument("--fresh", action="store_true", help="run each job in a new interpreter")
    parser.add_argument("--abandoned-after", type=float, help="seconds without a controller; default: no limit")
    parser.add_argument("--early", action="store_true", help="do not touch ROOT before orders on standard input")
    options = parser.parse_args()
    state = LocalState(options.root)
    if not options.fresh:
        warm_up(options.preload, options.runner, options.root)
    await_orders()
    if options.early:
        enter_root(state, options.slot)
    slot = fork_workers(state, [options.slot, *options.also]) if options.also else options.slot
    worker = Worker(
        options.root,
        slot,
        options.runner,
        options.idle_timeout,
        fresh=options.fresh,
        abandoned_after=options.abandoned_after,
    )
    signal.signal(signal.SIGTERM, worker.tell_to_end)
    signal.signal(signal.SIGINT, worker.tell_to_end)
    adopt_orphans()
    worker.serve()


if __name__ == "__main__":
    main()
