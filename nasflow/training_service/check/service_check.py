"""Runs a small job on each slot of a service, or one on a cluster, and leaves nothing behind."""

import contextlib
import logging
import secrets
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from nasflow.config.limits import LimitsConfig
from nasflow.config.search import SearchConfig
from nasflow.config.services.union import ServiceConfig
from nasflow.errors import NasflowError
from nasflow.job.spec import JobSpec, MemberSpec
from nasflow.space.architecture import Architecture
from nasflow.training_service.base import TrainingService
from nasflow.training_service.check.job import NodeReport
from nasflow.training_service.check.judge import WITHOUT_LOG, Clock, advised, problems
from nasflow.training_service.check.small_job import SmallJob
from nasflow.training_service.problem import Problem, in_order

_POLL = 0.1  # seconds
_START_UP = 10.0  # seconds more than a job may wait for its place, in which the service learns why it waits
_HOLD = 40.0  # seconds that a job keeps its slot for the others to begin beside it
_LIMITS = LimitsConfig(job=600, stalled=None)  # should the check be killed
_EACH_SLOT = ("local", "ssh")  # services whose slots are there before a job is
_IN_PROCESS = "debug"


@dataclass(frozen=True)
class SlotReport:
    """What a job found. `clock` is None if the clocks were not compared."""

    slot: str
    report: NodeReport
    clock: Clock | None


@dataclass
class CheckedService:
    """The result for one service. `problems` has errors and warnings."""

    name: str
    slots: list[SlotReport] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)

    @property
    def in_order(self) -> bool:
        """Whether it runs jobs as it should."""
        return in_order(self.problems)

    def add(self, text: str, seen: str = "", otherwise: str = "") -> None:
        """Add an error, once, with what to do about it (`advised`)."""
        problem = Problem("error", f"{self.name}: {advised(text, seen, otherwise)}")
        if problem not in self.problems:
            self.problems.append(problem)


def check_service(
    section: ServiceConfig, config: SearchConfig, make: Callable[[Path], TrainingService], seconds: float
) -> CheckedService:
    """Check one service.

    Whatever happens, also KeyboardInterrupt, its jobs have ended and its files are gone when this returns.

    Args:
        section: the service's section in the config.
        config: the search.
        make: makes the service for a root, with the runner `nasflow.training_service.check.job.RUNNER`.
        seconds: that a job may wait for a place.
    """
    found = CheckedService(section.kind)
    with _warnings() as said:
        try:
            with _new_root(config) as root:
                service = make(root)
                service.validate()
                try:
                    jobs = _submitted(service, section, config)
                    _follow(jobs, seconds + _START_UP, said)
                    _judge(jobs, section, found)
                finally:
                    _clean(service, found, said)
        except (NasflowError, OSError, ValueError) as error:  # a host may report anything
            found.add(str(error))
    return found


def _submitted(service: TrainingService, section: ServiceConfig, config: SearchConfig) -> list[SmallJob]:
    service.prepare()
    count = max(1, len(service.slots())) if section.kind in _EACH_SLOT else 1
    jobs = [SmallJob(service, _spec(config, number)) for number in range(count)]
    if section.kind == _IN_PROCESS:  # it runs them inside `status`, so nobody can answer them there
        for job in jobs:
            job.answer()
    return jobs


def _follow(jobs: Sequence[SmallJob], seconds: float, said: Sequence[str]) -> None:
    """Look after the jobs until each has ended or has a problem."""
    begin = time.monotonic()
    while unfinished := [job for job in jobs if not job.done]:
        for job in unfinished:
            job.look()
        now = time.monotonic()
        began = [job.began for job in jobs if job.began is not None]
        all_began = all(job.began is not None or job.done for job in jobs)
        if began and (all_began or now - min(began) > _HOLD):  # so that each slot has one of them
            for job in jobs:
                if job.began is not None and not job.answered:
                    job.answer()
        for job in unfinished:
            job.give_up_if(now - begin - seconds, said[-1] if said else "")
        time.sleep(_POLL)


def _judge(jobs: Sequence[SmallJob], section: ServiceConfig, found: CheckedService) -> None:
    for job in jobs:
        if job.problem:
            found.add(job.problem, job.log, "" if job.log.strip() or not job.ended else WITHOUT_LOG)
        if job.report is not None:
            slot, wants_gpu = job.slot or section.kind, bool(getattr(section, "gpus_per_job", 0))
            found.slots.append(SlotReport(slot, job.report, job.clock))
            where = slot if slot.startswith(section.kind) else f"{section.kind} {slot}"
            found.problems += problems(where, job.report, job.clock, wants_gpu or "gpu-" in slot)
    found.slots.sort(key=lambda each: each.slot)


def _spec(config: SearchConfig, number: int) -> JobSpec:
    member = MemberSpec(trial=number, architecture=Architecture({}), seed=config.seed)
    spec = JobSpec.of_search(config, f"check-{number}", config.evaluator.data, [member], wide=False)
    return spec.model_copy(update={"limits": _LIMITS})


@contextmanager
def _new_root(config: SearchConfig) -> Iterator[Path]:
    """A new folder beside the study's, and the folders above it that are missing, all of them gone afterwards."""
    root = config.work_dir / f"{config.name}-check-{secrets.token_hex(4)}"
    above = [path for path in (root, *root.parents) if not path.exists()][1:]
    try:
        yield root
    finally:
        with _undisturbed():
            if root.exists():
                shutil.rmtree(root)
            for folder in above:
                with contextlib.suppress(OSError):  # it was not made, or another program uses it by now
                    folder.rmdir()


def _clean(service: TrainingService, found: CheckedService, said: list[str]) -> None:
    """End what runs, and remove what the service has elsewhere."""
    with _undisturbed():
        said.clear()
        try:
            service.cleanup()
        except (NasflowError, OSError) as error:
            said.append(str(error))
        for text in said:
            found.add(f"not all that the check made there could be removed: {text}")


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Within it, no signal interrupts this thread if it is the main one."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _warnings() -> Iterator[list[str]]:
    """Collect what services log, which say so when a cluster does not answer."""
    said: list[str] = []

    class Collect(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.append(record.getMessage())

    handler, log = Collect(logging.WARNING), logging.getLogger("nasflow.training_service")
    log.addHandler(handler)
    try:
        yield said
    finally:
        log.removeHandler(handler)
