"""What the small job of a check does on its node: it reports what is there, and lets the two clocks be compared."""

import os
import platform
import shutil
import subprocess
import tempfile
import time
from importlib import metadata
from pathlib import Path

from pydantic import BaseModel, ConfigDict, NonNegativeInt

from nasflow.clean_text import CleanText
from nasflow.job.events import Ended, EventWriter, Started
from nasflow.job.spec import JobSpec, stop_mark
from nasflow.system.small_files import write_aside

REPORT = "check.json"
"""The file in the job's folder with its `NodeReport`."""
RUNNER = "nasflow.training_service.check.job:run_check_job"
"""Runs the job, in place of the runner of training jobs."""
UNANSWERED = "the controller has not answered"

_WAITS = 50.0  # seconds for the controller's answer
_POLL = 0.05  # seconds
_MOST = 32  # MiB that are written
_LONGEST = 5.0  # seconds for writing, and for reading
_MIB = 2**20
_SMI_ANSWERS_WITHIN = 15.0  # seconds


class NodeGpu(BaseModel):
    """A GPU that the job's torch can use; `memory` in bytes."""

    model_config = ConfigDict(frozen=True)

    name: CleanText
    memory: NonNegativeInt


class NodeReport(BaseModel):
    """What the job found where it ran. A value that could not be determined is None.

    Attributes:
        host: the node's name.
        nasflow: the version of the installed package.
        torch: the version.
        torch_error: why torch can't be imported; empty if it can.
        gpus: those that torch sees.
        driver: the version of NVIDIA's.
        free: bytes free on the disk with the job's files.
        write_speed, read_speed: of that disk, in bytes a second.
    """

    model_config = ConfigDict(frozen=True)

    host: CleanText
    python: CleanText
    nasflow: CleanText | None
    torch: CleanText | None
    torch_error: CleanText = ""
    gpus: list[NodeGpu] = []
    driver: CleanText | None = None
    free: NonNegativeInt
    write_speed: float
    read_speed: float


def run_check_job(path: Path) -> int:
    """Write the report beside `path`, a job's `job.json`, and report its events: `started`, `ended`.

    `ended` follows the controller's mark, so its time is between that of the mark and that at which the controller
    reads it, if both clocks are in step.
    """
    path = path.resolve()
    trial = JobSpec.model_validate_json(path.read_bytes()).members[0].trial
    write_aside(path.with_name(REPORT), _look(path.parent).model_dump_json())
    events = EventWriter(path.with_name("events.jsonl"))
    try:
        events.write(Started(resumed={trial: 0}))
        answered = _answered(stop_mark(path.parents[2], trial))
        events.write(Ended(error=None if answered else UNANSWERED))
    finally:
        events.close()
    return 0


def _answered(mark: Path) -> bool:
    deadline = time.monotonic() + _WAITS
    while time.monotonic() < deadline:
        folder = mark.parent
        if folder.is_dir() and mark in folder.iterdir():  # a network file system may remember that it was missing
            return True
        time.sleep(_POLL)
    return False


def _look(folder: Path) -> NodeReport:
    write_speed, read_speed = _speeds(folder)
    torch, torch_error, gpus = _torch()
    return NodeReport(
        host=platform.node(),
        python=platform.python_version(),
        nasflow=_version("nasflow"),
        torch=torch,
        torch_error=torch_error,
        gpus=gpus,
        driver=_driver() if gpus else None,
        free=shutil.disk_usage(folder).free,
        write_speed=write_speed,
        read_speed=read_speed,
    )


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _torch() -> tuple[str | None, str, list[NodeGpu]]:
    """Return torch's version, why it can't be used, and the GPUs that it sees."""
    try:
        import torch  # noqa: PLC0415 - what it lacks is to be reported
    except Exception as error:  # a broken installation may raise anything
        return None, f"{type(error).__name__}: {error}", []
    found = []
    for index in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        about = torch.cuda.get_device_properties(index)
        found.append(NodeGpu(name=about.name, memory=about.total_memory))
    return str(torch.__version__), "", found


def _driver() -> str | None:
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SMI_ANSWERS_WITHIN, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return next(iter(done.stdout.split()), None)


def _speeds(folder: Path) -> tuple[float, float]:
    """Return how many bytes a second the disk of a folder writes and reads, by trying."""
    chunk = os.urandom(_MIB)  # which no file system can compress
    with tempfile.TemporaryDirectory(dir=folder) as aside:
        file = Path(aside) / "speed"
        begin, written = time.perf_counter(), 0
        with file.open("wb", buffering=0) as target:
            while written < _MOST and time.perf_counter() - begin < _LONGEST:
                target.write(chunk)
                written += 1
            os.fsync(target.fileno())
        write_seconds = time.perf_counter() - begin
        with file.open("rb", buffering=0) as source:
            os.posix_fadvise(source.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)  # else memory is what is measured
            begin, read = time.perf_counter(), 0
            while time.perf_counter() - begin < _LONGEST and (part := source.read(_MIB)):
                read += len(part)
        read_seconds = time.perf_counter() - begin
    return written * _MIB / max(write_seconds, 1e-6), read / max(read_seconds, 1e-6)
