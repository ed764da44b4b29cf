"""Real servers of each training service, started on this machine for a comparison of searches."""

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.commands import ContestantError, PrefectServer
from tests.dask import start_dask
from tests.flows.pool.pools import FINAL, Pools
from tests.flows.searches import PrefectServer as ServerOfTests
from tests.hosted.azureml.emulator import SUBSCRIPTION, Azureml
from tests.hosted.dlts import Dlts
from tests.hosted.openpai import OpenPai
from tests.kubernetes import programs as kubernetes_programs
from tests.kubernetes.cluster import Cluster, start_cluster
from tests.kubernetes.crds import install
from tests.kubernetes.node import IMAGE
from tests.kubernetes.operators import AdaptDL, FrameworkController, Operator, Trainer, TrainingOperator
from tests.object_store.s3 import S3
from tests.ray_head import TOKEN, ray_head
from tests.slurm import lacking, start_slurm
from tests.sshd import start_sshd

Section = Mapping[str, Any]
SetUp = Callable[[Path, PrefectServer], AbstractContextManager[Section]]
"""From a folder, and the Prefect server of the search."""


class UnavailableError(RuntimeError):
    """This machine lacks what the servers of a kind need."""


@contextmanager
def ssh(folder: Path, server: PrefectServer) -> Iterator[Section]:
    """Start an sshd. Yield the section of a search on it."""
    with start_sshd(folder / "host") as host:
        yield {
            "kind": "ssh",
            "hosts": [host.config_host(slots=2)],
            "known_hosts": str(host.known_hosts),
            "ssh_config": "/dev/null",
        }


@contextmanager
def slurm(folder: Path, server: PrefectServer) -> Iterator[Section]:
    """Start a Slurm. Yield the section of a search on it."""
    if reason := lacking():
        raise UnavailableError(f"needs {reason}")
    with start_slurm():
        yield {"kind": "slurm", "max_jobs": 2, "poll_seconds": 0.5}


@contextmanager
def dask(folder: Path, server: PrefectServer) -> Iterator[Section]:
    """Start a scheduler and workers. Yield the section of a search on them."""
    folder.mkdir()
    with start_dask(folder, threads=os.cpu_count() or 1) as cluster:  # so that a job has one thread, as of `local`
        yield {"kind": "dask", "address": cluster.address, "max_jobs": 2}


@contextmanager
def ray(folder: Path, server: PrefectServer) -> Iterator[Section]:
    """Start a Ray head. Yield the section of a search on it."""
    folder.mkdir()
    with ray_head({}) as address:
        yield {"kind": "ray", "address": address, "headers": {"Authorization": f"Bearer {TOKEN}"}, "max_jobs": 2}


@contextmanager
def prefect(folder: Path, server: PrefectServer) -> Iterator[Section]:
    """Start a process worker of a work pool on the search's server. Yield the section of a search on the pool."""
    folder.mkdir()
    url = server.environment["PREFECT_API_URL"]
    pools = Pools(folder, ServerOfTests(url, {**os.environ, **server.environment}))
    pool = pools.make("jobs")
    with pools.worker(pool):
        yield {"kind": "prefect", "work_pool": pool, "max_jobs": 2, "poll_seconds": 0.5}
        runs = pools.server.post("/flow_runs/filter", {"work_pools": {"name": {"any_": [pool]}}})
        if left := [run["name"] for run in runs if run["state_type"] not in FINAL]:
            raise ContestantError(f"flow runs are left over: {left}")


@contextmanager
def _cluster(folder: Path) -> Iterator[tuple[Cluster, Section]]:
    """Start an API server, a scheduler, a Job controller and a stand-in for a node; what all sections share."""
    if reason := kubernetes_programs.lacking():
        raise UnavailableError(f"needs {reason}")
    with start_cluster(folder) as cluster:
        where = {"kubeconfig": cluster.kubeconfig(), "image": IMAGE, "python": sys.executable}
        yield cluster, {**where, "poll_seconds": 0.5, "max_jobs": 2}


@contextmanager
def kubernetes(folder: Path, server: PrefectServer) -> Iterator[Section]:
    """Start a Kubernetes. Yield the section of a search on it."""
    with _cluster(folder) as (_, shared):
        yield {"kind": "kubernetes", **shared}


def operated(stand_in: type[Operator], section: Section) -> SetUp:
    """Return a set-up that starts a Kubernetes and a stand-in for an operator."""

    @contextmanager
    def set_up(folder: Path, server: PrefectServer) -> Iterator[Section]:
        with _cluster(folder) as (cluster, shared):
            install(cluster.api)
            operator = stand_in(cluster.api, folder / "operator.err")
            operator.start()
            try:
                yield {**section, **shared}
            finally:
                operator.stop()

    return set_up


@contextmanager
def object_store(folder: Path, server: PrefectServer) -> Iterator[Section]:
    """Start a Slurm, and an S3 server through which its nodes get their files. Yield the section of a search."""
    if reason := lacking():
        raise UnavailableError(f"needs {reason}")
    server = S3()
    try:
        with start_slurm():
            storage = {**server.storage(), "python": sys.executable, "poll_seconds": 0.5}
            yield {"kind": "slurm", "max_jobs": 2, "poll_seconds": 0.5, "storage": storage}
        if left := server.objects():
            raise ContestantError(f"objects are left over: {left}")
    finally:
        server.close()


@contextmanager
def openpai(folder: Path, server: PrefectServer) -> Iterator[Section]:
    """Start an emulator of OpenPAI. Yield the section of a search on it."""
    with OpenPai().running() as emulator:
        where = {"url": emulator.url, "user": "ada", "token": "t0ken"}
        yield {"kind": "openpai", **where, **_HOSTED}


@contextmanager
def dlts(folder: Path, server: PrefectServer) -> Iterator[Section]:
    """Start an emulator of DLTS. Yield the section of a search on it."""
    with Dlts().running() as emulator:
        who = {"email": "ada@example.com", "password": "5f4dcc3b", "team": "vision"}
        yield {"kind": "dlts", "url": f"http://{emulator.address}", **who, **_HOSTED}


@contextmanager
def dlc(folder: Path, server: PrefectServer) -> Iterator[Section]:
    """Start an emulator of PAI-DLC, which Alibaba's SDK uses. Yield the section of a search on it."""
    if find_spec("alibabacloud_pai_dlc20201203") is None:
        raise UnavailableError("needs the packages of nasflow[dlc]")
    from tests.hosted.dlc import Dlc  # noqa: PLC0415 - needs them

    with Dlc().running() as emulator:
        keys = {"access_key_id": "LTAI", "access_key_secret": "s3cret"}
        where = {"endpoint": f"http://{emulator.address}", "region": "cn-hangzhou", "workspace_id": "77"}
        yield {"kind": "dlc", **where, **keys, **_HOSTED}


@contextmanager
def azureml(folder: Path, server: PrefectServer) -> Iterator[Section]:
    """Start an emulator of Azure ML. Yield the section of a search on it."""
    with Azureml().running() as emulator:
        where = {"subscription_id": SUBSCRIPTION, "resource_group": "lab", "workspace_name": "vision"}
        what = {"compute_target": "cpu-cluster", "token": "t0ken"}
        yield {"kind": "azureml", "url": f"http://{emulator.address}", **where, **what, **_HOSTED}


@contextmanager
def several(folder: Path, server: PrefectServer) -> Iterator[Section]:
    """Start a Slurm and a Dask. Yield the section of a search on both, with slots and threads as those of `local`."""
    folder.mkdir()
    with slurm(folder / "slurm", server) as one, dask(folder / "dask", server) as other:
        yield {"kind": "several", "services": [{**each, "max_jobs": 1} for each in (one, other)]}


_HOSTED = {"image": "nasflow:1", "python": sys.executable, "poll_seconds": 0.5, "memory_gb": 2, "max_jobs": 2}

SET_UPS: dict[str, SetUp] = {
    "ssh": ssh,
    "slurm": slurm,
    "ray": ray,
    "dask": dask,
    "object-store": object_store,
    "prefect": prefect,
    "kubernetes": kubernetes,
    "kubeflow": operated(TrainingOperator, {"kind": "kubeflow"}),
    "kubeflow-trainer": operated(Trainer, {"kind": "kubeflow", "job_kind": "TrainJob"}),
    "frameworkcontroller": operated(FrameworkController, {"kind": "frameworkcontroller"}),
    "adaptdl": operated(AdaptDL, {"kind": "adaptdl"}),
    "openpai": openpai,
    "dlts": dlts,
    "dlc": dlc,
    "azureml": azureml,
    "several": several,
}
"""By the name of the comparison: a training service, or services with a storage."""
