"""The program of workers: `python -m nasflow.training_service.local.worker ROOT SLOT`, started by the local service.

It imports what jobs need once. It then forks a worker for each slot, or is itself the worker of the only slot. A worker
forks a process for each job (like Android's zygote); with `--fresh` that process executes a new program. The worker
never computes with torch itself, because a process that has started torch's threads or a GPU must not fork. It adopts
the orphans of its job, so it can end everything the job started, however the job ends.
"""

import argparse
import importlib
import json
import os
import signal
import sys
import time
import traceback
from functools import partial
from pathlib import Path

from nasflow.config.secret.secrets import give, given
from nasflow.job.spec import job_dir
from nasflow.load_target import load_target
from nasflow.system.gc_control import freeze_shared, uncollected
from nasflow.system.memory import memory_limit
from nasflow.training_service.files.controller_calls import ControllerCalls
from nasflow.training_service.local.fork import fork_workers, write_to
from nasflow.training_service.local.state import LocalState
from nasflow.training_service.machine.job_process import flush, run_in_child
from nasflow.training_service.machine.processes import adopt_orphans

_POLL = 0.03  # seconds between two looks for work


class Worker:
    """Takes jobs from the queue, one at a time.

    It stops when it is asked to, after `idle_timeout` seconds without work, or after `abandoned_after` seconds without
    a call of a controller.
    """

    def __init__(self, root: Path, slot: str, runner: str, idle_timeout: float, *, fresh: bool, abandoned_after: float):
        self._state = LocalState(root)
        self._root, self._slot, self._runner, self._idle_timeout = root, slot, runner, idle_timeout
        self._fresh, self._calls = fresh, ControllerCalls(self._state.controller, abandoned_after)
        self._why_end = ""
        self._signalled = False

    def tell_to_end(self, *_: object) -> None:
        """Handle a signal: end the job, if any, and then this process."""
        self._signalled = self._signalled or not self._why_end
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
            time.sleep(_POLL)

    def _must_end(self) -> str:
        """Return why this process must end; empty if it need not."""
        if not self._why_end and (missing := self._calls.missing()):
            self._why_end = missing  # not assigned when empty: a signal may have come during the look
        return self._why_end

    def _dismissed(self) -> bool:
        """Whether the service removed the record of this worker, or never wrote it."""
        record = self._state.worker(self._slot)
        return record is None or record.process.pid != os.getpid()

    def _run(self, job_id: str, slots: int) -> None:
        folder = job_dir(self._root, job_id)
        cancel = self._state.cancel_mark(job_id)
        state = run_in_child(
            folder / "job.json",
            self._work,
            lambda: self._must_end() or ("it was cancelled" if cancel.exists() else ""),
            memory_limit() // slots,
            self._slot,
            by_signal=lambda: self._signalled,
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


def warm_up(modules: list[str], runner: str, root: Path) -> None:
    """Import what jobs need, once. If an import fails, a job that needs it repeats it, and its log shows why."""
    imports = [*(partial(importlib.import_module, name) for name in modules), partial(load_target, runner, root)]
    with uncollected():
        for each in imports:
            try:
                each()
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
    parser.add_argument("--abandoned-after", type=float, default=float("inf"), help="seconds without a controller")
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
