"""Real servers of each training service, started on this machine for a comparison of searches."""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from tests.dask import start_dask
from tests.slurm import lacking, start_slurm
from tests.sshd import start_sshd

Section = Mapping[str, Any]
SetUp = Callable[[Path], AbstractContextManager[Section]]


class UnavailableError(RuntimeError):
    """This machine lacks what the servers of a kind need."""


@contextmanager
def ssh(folder: Path) -> Iterator[Section]:
    """Start an sshd. Yield the section of a search on it."""
    with start_sshd(folder / "host") as host:
        yield {
            "kind": "ssh",
            "hosts": [host.config_host(slots=2)],
            "known_hosts": str(host.known_hosts),
            "ssh_config": "/dev/null",
        }


@contextmanager
def slurm(folder: Path) -> Iterator[Section]:
    """Start a Slurm. Yield the section of a search on it."""
    if reason := lacking():
        raise UnavailableError(f"needs {reason}")
    with start_slurm():
        yield {"kind": "slurm", "max_jobs": 2, "poll_seconds": 0.5}


@contextmanager
def dask(folder: Path) -> Iterator[Section]:
    """Start a scheduler and workers. Yield the section of a search on them."""
    folder.mkdir()
    with start_dask(folder, threads=os.cpu_count() or 1) as cluster:  # so that a job has one thread, as of `local`
        yield {"kind": "dask", "address": cluster.address, "max_jobs": 2}


SET_UPS: dict[str, SetUp] = {"ssh": ssh, "slurm": slurm, "dask": dask}
