"""Helpers of the contract suite of training services: make scripted jobs, wait for them, and read their files."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import psutil
import pytest

from nasflow.config.search import CheckpointConfig, DataConfig, RegressionConfig, Target
from nasflow.job.events import parse_event
from nasflow.job.spec import JobSpec, MemberSpec
from nasflow.training_service.base import JobHandle, JobState, JobStatus, TrainingService

T = TypeVar("T")

_PAUSE = 0.01  # seconds between two looks that cost nothing
_PATIENCE = 120.0  # seconds; a busy machine takes long to start a program


def script(job_id: str, *steps: list[Any]) -> JobSpec:
    """Return a job that carries out these steps (`nasflow.testing.scripted_job`)."""
    data = DataConfig(target="none:none")
    return JobSpec(
        job_id=job_id,
        study="contract",
        space=Target(target="none:none", params={"steps": list(steps)}),
        evaluator=RegressionConfig(data=data),
        data=data,
        checkpoint=CheckpointConfig(),
        data_seed=0,
        base_dir=Path(),
        members=[MemberSpec(trial=0, architecture={}, seed=0)],
    )


def until(condition: Callable[[], T], what: str, seconds: float = _PATIENCE) -> T:
    """Wait until `condition` is true and return its value; after `seconds`, fail with a message that names `what`."""
    deadline = time.monotonic() + seconds
    while True:
        begun = time.monotonic()
        if value := condition():
            return value
        now = time.monotonic()
        if now > deadline:
            pytest.fail(f"after {seconds} s still no: {what}")
        time.sleep(min(max(_PAUSE, 4 * (now - begun)), 10 * _PAUSE))  # a costly look leaves the processors to jobs


def finish(service: TrainingService, handle: JobHandle, seconds: float = _PATIENCE) -> JobState:
    """Wait for a job's end and return its state."""
    until(lambda: service.status(handle).status.finished, f"end of {handle.job_id}", seconds)
    return service.status(handle)


def await_status(service: TrainingService, handle: JobHandle, status: JobStatus) -> JobState:
    """Wait until a job has this status and return its state."""
    until(lambda: service.status(handle).status is status, f"{handle.job_id} {status}")
    return service.status(handle)


def numbers(service: TrainingService, path: str) -> list[int]:
    """Return the numbers in a job's file; empty if it does not exist yet."""
    try:
        return [int(line) for line in service.fetch(path).read_text().splitlines()]
    except FileNotFoundError:
        return []


def epochs(service: TrainingService, handle: JobHandle) -> list[tuple[int, bool]]:
    """Return the epochs that a job reported, and whether each was replayed."""
    events = [parse_event(line) for line in service.events(handle)[0]]
    return [(event.epoch, event.replayed) for event in events if event.kind == "epoch"]


def running(process: psutil.Process) -> bool:
    """Whether a process runs and is not a zombie."""
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def mentions(process: psutil.Process, text: str) -> bool:
    """Whether `text` is in a process's command line or environment."""
    try:
        return any(text in part for part in (*process.cmdline(), *process.environ().values()))
    except (psutil.Error, OSError):
        return False
