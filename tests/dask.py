"""A real Dask cluster for tests: a scheduler and workers, all on this machine."""

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import distributed

from nasflow.testing.service_jobs import until

WORKERS = 3


class Dask:
    """A scheduler and workers of so many threads, each with a GPU so to speak."""

    def __init__(self, folder: Path, threads: int = 1):
        self.folder = folder
        self.scheduler = self._start("scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard")
        (self.address,) = until(
            lambda: re.findall(r"Scheduler at: +(tcp://\S+)", (folder / "scheduler.log").read_text()), "scheduler", 60
        )
        options = [
            "--nworkers",
            str(WORKERS),
            "--nthreads",
            str(threads),
            "--resources",
            "GPU=1",
            "--memory-limit",
            "0",
        ]
        self.workers = self._start("worker", self.address, *options, "--no-dashboard", "--local-directory", str(folder))
        with distributed.Client(self.address, set_as_default=False) as client:
            client.wait_for_workers(WORKERS, timeout=60)

    def _start(self, program, *arguments):
        with (self.folder / f"{program}.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "distributed.cli.dask_" + program, *arguments],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )

    def stop(self):
        for process in (self.workers, self.scheduler):
            process.terminate()
            process.wait(60)


@contextmanager
def start_dask(folder: Path, threads: int = 1) -> Iterator[Dask]:
    """The cluster, within this."""
    cluster = Dask(folder, threads)
    try:
        yield cluster
    finally:
        cluster.stop()
