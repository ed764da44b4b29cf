"""The checks of `nasflow doctor` on this machine: packages, kernels, slots, the study store, disks."""

import errno
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, metadata, requires, version
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from nasflow.config.job_secrets import job_secrets
from nasflow.config.search import SearchConfig
from nasflow.config.secret.secrets import SecretLocation
from nasflow.config.services.ssh import SshServiceConfig
from nasflow.config.services.union import each_service
from nasflow.study.database.network_disk import network_warning
from nasflow.study.database.store_check import look_at_store
from nasflow.study.database.store_url import sqlite_file

from ...pool.make import make_service
from .findings import Finding, Level

_SHOWN = ("prefect", "fastapi", "torch", "pytorch-lightning")
_BREAKS = {
    "fastapi": ", with which Prefect's server does not start",
    "sqlalchemy": ", with which Prefect's server makes no scheduled runs",
}
_FULL = 100 * 2**20  # bytes; a few checkpoints and a database need that much
_LOW = 2**30
_TRIED = 2**20


def check_packages() -> Iterator[Finding]:
    """Check Python and the packages against the requirements in nasflow's metadata."""
    broken = False
    for finding in _wrong_packages():
        broken = True
        yield finding
    if not broken:
        shown = ", ".join(f"{name} {version(name)}" for name in _SHOWN)
        yield Finding("packages", Level.OK, f"Python {platform.python_version()}, {shown}")


def check_kernels() -> Iterator[Finding]:
    """Check whether jobs on this machine can compile the native kernels."""
    from nasflow.native import COMPILERS, find_compiler  # noqa: PLC0415 - loads torch

    compiler = find_compiler()
    if compiler is None:
        fix = f"install one of {', '.join(COMPILERS)}; without one, small models train more slowly on the CPU"
        yield Finding("kernels", Level.WARNING, "there is no C compiler for the native kernels of fused steps", fix)
    else:
        yield Finding("kernels", Level.OK, f"jobs with one core a slot run native kernels, compiled with {compiler}")


def check_slots(config: SearchConfig) -> Iterator[Finding]:
    """Check whether the training service can run jobs, and how many at a time. Starts nothing."""
    for section in each_service(config.training_service):
        if isinstance(section, SshServiceConfig):
            yield from _check_hosts(config)
            continue
        service = make_service(section, config.study_dir, config.base_dir, job_secrets(config))
        service.validate()
        if slots := service.slots():
            yield Finding("slots", Level.OK, f"{len(slots)} for each search: {', '.join(slots)}")
        else:
            yield Finding(
                "slots", Level.BROKEN, f"the service '{section.kind}' has none", "see 'training_service' in the config"
            )


def check_store(url: SecretLocation) -> Iterator[Finding]:
    """Check whether the study store can be written, and the disk that it is on."""
    yield Finding("store", Level.OK, look_at_store(url))
    if (file := sqlite_file(url)) is not None:
        if (warning := network_warning(file)) is not None:
            yield Finding("store", Level.WARNING, *warning)
        yield from check_folder("store disk", file.parent)


def check_folder(check: str, folder: Path) -> Iterator[Finding]:
    """Check whether files can be written in a folder, or where it would be created, and how much space is free."""
    there = next(path for path in (folder, *folder.parents) if path.exists())
    if not there.is_dir():
        yield Finding(check, Level.BROKEN, f"{there} is not a folder", "move it away, or name another folder")
        return
    try:
        with tempfile.TemporaryFile(dir=there, buffering=0) as file:
            written = file.write(bytes(_TRIED))
            os.fsync(file.fileno())
        full = written < _TRIED
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        if not full:
            yield Finding(
                check, Level.BROKEN, f"can't write in {there} ({error.strerror})", "name a folder that you can write to"
            )
            return
    free = shutil.disk_usage(there).free
    saw = f"{_size(free)} free in {there}"
    if full or free < _FULL:
        yield Finding(check, Level.BROKEN, f"the disk is full: {saw}", "make room there, or name a folder elsewhere")
    elif free < _LOW:
        yield Finding(check, Level.WARNING, f"the disk is nearly full: {saw}", "make room there")
    else:
        yield Finding(check, Level.OK, f"can be written, {saw}")


def _wrong_packages() -> Iterator[Finding]:
    wanted = metadata("nasflow")["Requires-Python"]
    if wanted and platform.python_version() not in SpecifierSet(wanted, prereleases=True):
        yield Finding(
            "packages",
            Level.BROKEN,
            f"Python {platform.python_version()}, and nasflow needs {wanted}",
            "install nasflow with another Python",
        )
    for line in requires("nasflow") or []:
        requirement = Requirement(line)
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        try:
            found = version(requirement.name)
        except PackageNotFoundError:
            found = None
        if found is not None and requirement.specifier.contains(found, prereleases=True):
            continue
        saw = f"{requirement.name} {found}" if found else f"no {requirement.name}"
        wanted = f"{requirement.name}{requirement.specifier}"
        yield Finding(
            "packages",
            Level.BROKEN,
            f"{saw} is installed{_BREAKS.get(requirement.name, '')}; nasflow needs {wanted}",
            f"{sys.executable} -m pip install '{wanted}'",
        )


def _check_hosts(config: SearchConfig) -> Iterator[Finding]:
    from ..check.hosts import check_hosts  # noqa: PLC0415 - slow

    levels = {"error": Level.BROKEN, "warning": Level.WARNING}
    for host in check_hosts(config):
        for problem in host.problems:
            yield Finding("slots", levels[problem.level], problem.text)
        if host.in_order:
            yield Finding("slots", Level.OK, f"host {host.name} can run jobs")


def _size(count: int) -> str:
    return f"{count / 2**30:.1f} GiB" if count >= _LOW else f"{count / 2**20:.0f} MiB"
