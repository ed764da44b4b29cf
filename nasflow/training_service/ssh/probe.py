"""Checks whether a host can run jobs, and advises the user what to do if it can't."""

import json
import shlex
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BaseModel, Field, FiniteFloat, ValidationError

from nasflow.clean_text import one_line
from nasflow.config.reading.errors import explain
from nasflow.config.services.ssh import SshHostConfig, SshServiceConfig
from nasflow.errors import ServiceError
from nasflow.training_service.problem import Problem, problems_of
from nasflow.training_service.ssh import probe_script
from nasflow.training_service.ssh.connect.connection import Completed, SshConnection
from nasflow.training_service.ssh.connect.route import place_of

NEEDED = (
    "torch",
    "pytorch-lightning",
    "torchmetrics",
    "pydantic",
    "numpy",
    "safetensors",
    "fsspec",
    "psutil",
    "pyyaml",
    "greenlet",
    "scikit-learn",
)
"""The distributions that jobs import."""

_ANSWERS_WITHIN = 60.0  # seconds; enough for a busy host with its Python on a network disk
_FREE_BYTES = 200 * 10**6
_FREE_INODES = 2000
_CLOCK_SECONDS = 5.0


_Line = Annotated[str, AfterValidator(one_line)]
_Count = Annotated[int, Field(ge=0, lt=2**63)]


class FolderError(BaseModel):
    """Why work_dir can't be used: its disk is full, its file system has no locks, or another reason."""

    full: bool
    unlockable: bool = False
    text: _Line


class HostGpu(BaseModel):
    """A GPU, as reported by nvidia-smi; memory includes the unit."""

    index: _Count
    name: _Line
    memory_used: _Line
    memory_total: _Line
    users: list[_Line]


class HostReport(BaseModel):
    """The state of a host. If its Python is too old, only the first two attributes are known.

    Attributes:
        executable: the interpreter's own path.
        versions: of each needed distribution and of nasflow; None if missing.
        torch_cuda: the CUDA version for which torch is built.
        memory, free: bytes.
        work_dir: the expanded path.
        free_inodes: None if the file system does not count them.
        time: seconds since 1970 by its clock.
        clock_offset: seconds by which its clock is ahead of this machine's, plus or minus `clock_error`.
    """

    python: Annotated[str, Field(pattern=r"^[0-9]{1,3}\.[0-9]{1,3}(\.|$)", max_length=80)]
    executable: _Line
    versions: dict[str, _Line | None] = {}
    torch_cuda: _Line | None = None
    platform: _Line = ""
    cpus: _Count = 0
    memory: _Count = 0
    user: _Line = ""
    work_dir: _Line = ""
    folder_error: FolderError | None = None
    free: _Count = 0
    free_inodes: _Count | None = None
    gpus: list[HostGpu] = []
    gpu_error: _Line | None = None
    time: Annotated[FiniteFloat | None, Field(exclude=True)] = None
    clock_offset: float = 0.0
    clock_error: float = 0.0

    @property
    def too_old(self) -> bool:
        """Whether its Python is too old for nasflow."""
        major, minor = self.python.split(".")[:2]
        return (int(major), int(minor)) < probe_script.MIN_PYTHON


def probe(connection: SshConnection, host: SshHostConfig) -> HostReport:
    """Inspect a host. Leaves nothing on the host.

    Raises:
        ServiceError: its Python can't be started, its report is none, or it has no sftp.
        Unreachable: it does not answer.
    """
    program = Path(probe_script.__file__).read_bytes()
    began = time.time()
    done = connection.run(
        [host.python, "-", host.work_dir, json.dumps([*NEEDED, "nasflow"])], program, timeout=_ANSWERS_WITHIN
    )
    ended = time.time()
    lines = done.stdout.decode(errors="replace").splitlines()
    marked = [text for _, mark, text in (line.partition(probe_script.MARK) for line in lines) if mark]
    if done.returncode != 0 or not marked:
        raise ServiceError(f"{connection.place}: {_not_started(host, done)}")
    try:
        report = HostReport.model_validate_json(marked[-1])
    except ValidationError as error:
        text = explain(error, HostReport, "report")
        raise ServiceError(f"{connection.place}: '{host.python}' gave an invalid report: {text}") from None
    with connection.sftp():
        pass  # jobs need it
    at = (began + ended) / 2 if report.time is None else report.time
    return report.model_copy(update={"clock_offset": at - (began + ended) / 2, "clock_error": (ended - began) / 2})


def problems(report: HostReport, host: SshHostConfig, service: SshServiceConfig) -> list[Problem]:
    """Return the problems of a host, errors first."""
    place = place_of(host)
    min_python = ".".join(map(str, probe_script.MIN_PYTHON))
    if report.too_old:
        text = f"'{host.python}' is Python {report.python}; nasflow needs {min_python} or newer: name one in 'python'"
        return problems_of(place, [text])
    errors = [*_python_errors(report, service), *_folder_errors(report), *_gpu_errors(report, host, service)]
    warnings = [*_version_warnings(report), *_clock_warnings(report)]
    if report.gpu_error and host.gpu_indices is None and host.slots is None:
        warnings.append(f"nvidia-smi can't list the GPUs there ({report.gpu_error}); mend the driver, or set 'slots'")
    return problems_of(place, errors, warnings)


def refuse(report: HostReport, host: SshHostConfig, service: SshServiceConfig) -> None:
    """Raise ServiceError if there are errors among a host's problems."""
    errors = [problem.text for problem in problems(report, host, service) if problem.level == "error"]
    if errors:
        raise ServiceError("; ".join(errors))


def _not_started(host: SshHostConfig, done: Completed) -> str:
    said = done.stderr.decode(errors="replace").strip().splitlines() or [f"exit code {done.returncode}"]
    wanted = f"Python {'.'.join(map(str, probe_script.MIN_PYTHON))} or newer"
    if "SyntaxError" in said[-1]:
        return f"'{host.python}' is too old even to tell its version; name {wanted} in 'python'"
    if host.env_setup and done.returncode not in (126, 127):
        return f"'{host.python}' can't be started after 'env_setup' ({said[-1]}); try both in a shell there"
    return f"'{host.python}' can't be started ({said[-1]}); install {wanted} there, or name its path in 'python'"


def _python_errors(report: HostReport, service: SshServiceConfig) -> list[str]:
    errors = []
    pip = f"{shlex.quote(report.executable)} -m pip install"
    missing = [name for name in NEEDED if not report.versions.get(name)]
    if missing:
        wanted = shlex.join(f"{name}=={_public(metadata.version(name))}" for name in missing)
        errors.append(f"{report.executable} has no {', '.join(missing)}; install there: {pip} {wanted}")
    ours, theirs = metadata.version("nasflow"), report.versions.get("nasflow")
    if service.nasflow == "installed" and theirs != ours:
        found = f"nasflow {theirs} is installed" if theirs else "no nasflow is installed"
        errors.append(
            f"{found} there, and {ours} here; install there: {pip} nasflow=={ours}, or set training_service.nasflow "
            "to 'ship'"
        )
    return errors


def _folder_errors(report: HostReport) -> list[str]:
    error = report.folder_error
    if error and error.unlockable:
        return [
            f"the file system of work_dir {report.work_dir} has no file locks ({error.text}); mount it with them "
            "(Lustre: option flock; NFS: without nolock), or name a folder on another one"
        ]
    free = f"{report.free / 10**6:.0f} MB"
    if error and not error.full:
        return [
            f"work_dir {report.work_dir} can't be written ({error.text}); name a folder that {report.user} may write"
        ]
    if error or report.free < _FREE_BYTES:
        return [
            f"the disk of work_dir {report.work_dir} is full ({free} free, {_FREE_BYTES / 10**6:.0f} MB needed); make "
            "room there, or name a folder on another disk"
        ]
    if report.free_inodes is not None and report.free_inodes < _FREE_INODES:
        return [
            f"the disk of work_dir {report.work_dir} has room for {report.free_inodes} files only; remove some there, "
            "or name a folder on another disk"
        ]
    return []


def _gpu_errors(report: HostReport, host: SshHostConfig, service: SshServiceConfig) -> list[str]:
    if not host.gpu_indices:
        takes_all = host.slots is None and bool(report.gpus)
        if not takes_all or len(report.gpus) >= service.devices_per_job:
            return []
        return [
            f"it has {len(report.gpus)} GPUs, and a job takes {service.devices_per_job} devices (devices_per_job, or "
            "evaluator.parallel.devices); give it less, leave the host out, or set 'slots' to train on the CPU"
        ]
    if report.gpu_error:
        return [f"nvidia-smi can't list the GPUs there ({report.gpu_error}); mend the driver, or set 'slots' instead"]
    known = [gpu.index for gpu in report.gpus]
    if unknown := [index for index in host.gpu_indices if index not in known]:
        there = f"its GPUs are {', '.join(map(str, known))}" if known else "it has none"
        return [f"gpu_indices names GPU {unknown[0]}, but {there}; name others, or set 'slots' to train on the CPU"]
    return []


def _version_warnings(report: HostReport) -> list[str]:
    warnings = []
    here = metadata.version("torch")
    there = report.versions.get("torch")
    if there and _public(there) != _public(here):
        warnings.append(
            f"torch is {there} there and {here} here; results may differ in their last bits: install the same version "
            "everywhere"
        )
    ours = f"{sys.version_info.major}.{sys.version_info.minor}"
    theirs = ".".join(report.python.split(".")[:2])
    if theirs != ours:
        warnings.append(f"Python is {theirs} there and {ours} here; code may behave differently: use one version")
    if report.gpus and there and report.torch_cuda is None:
        warnings.append(f"the host has GPUs, but torch {there} there is built for the CPU; install a build for CUDA")
    return warnings


def _clock_warnings(report: HostReport) -> list[str]:
    if abs(report.clock_offset) <= _CLOCK_SECONDS + report.clock_error:
        return []
    way = "ahead of" if report.clock_offset > 0 else "behind"
    return [
        f"its clock is {abs(report.clock_offset):.0f} s {way} this machine's, so times in logs do not compare; "
        "set up NTP there"
    ]


def _public(version: str) -> str:
    """Return a version without its local part, which names the build: `2.13.0` for `2.13.0+cpu`."""
    return version.partition("+")[0]
