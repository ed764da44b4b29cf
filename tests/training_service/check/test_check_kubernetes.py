"""What a check finds on a real Kubernetes: missing rights, quotas, images and GPUs, and nothing if all is well."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("kubernetes", reason="needs the Kubernetes client: install nasflow[kubernetes]")

from kubernetes import client

from nasflow.testing.training_service import until
from nasflow.training_service.cluster.kubernetes import states
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.node import IMAGE
from tests.training_service.check.checks import check, only_error

# the first test to start may have to build Kubernetes
pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]
SECTION = {"kind": "kubernetes", "image": IMAGE, "python": sys.executable, "poll_seconds": 0.3, "max_jobs": 1}


@pytest.fixture
def cluster(kubernetes_cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """The cluster, on which nothing is left after a test; a pod that can't start is given up after a second."""
    monkeypatch.setenv("KUBECONFIG", kubernetes_cluster.kubeconfig())
    monkeypatch.setattr(states, "SAID_AFTER", 1.0)
    yield kubernetes_cluster
    batch = client.BatchV1Api(kubernetes_cluster.api)
    assert batch.list_namespaced_job("default").items == []
    until(lambda: not kubernetes_cluster.pods("app.kubernetes.io/managed-by=nasflow"), "end of the last pod", 60)


def test_all_is_well(tmp_path: Path, cluster: Cluster) -> None:
    found = check(tmp_path, **SECTION)
    assert found.in_order, found.problems
    assert [slot.slot for slot in found.slots] == ["kubernetes-0"]


def test_no_rights(tmp_path: Path, cluster: Cluster) -> None:
    error = only_error(check(tmp_path, **SECTION, kubeconfig=cluster.kubeconfig("limited")))
    assert error.startswith(
        "kubernetes: training_service.namespace: in namespace 'default' this user may not create jobs, list jobs, "
    )
    assert error.endswith("docs/kubernetes.md has the Role that is needed")


@pytest.mark.parametrize("resource", ["count/jobs.batch", "pods"])
def test_no_quota(tmp_path: Path, cluster: Cluster, resource: str) -> None:
    core = client.CoreV1Api(cluster.api)
    core.create_namespaced_resource_quota("default", {"metadata": {"name": "none"}, "spec": {"hard": {resource: "0"}}})
    try:
        known = lambda: core.read_namespaced_resource_quota("none", "default").status.hard  # noqa: E731
        until(known, "the quota's controller", 60)
        error = only_error(check(tmp_path, 30.0, **SECTION))
    finally:
        core.delete_namespaced_resource_quota("none", "default")
    assert "exceeded quota: none" in error
    assert error.endswith("; free some of it, ask for a larger quota, or lower max_jobs and what a job takes")


def test_no_such_image(tmp_path: Path, cluster: Cluster) -> None:
    error = only_error(check(tmp_path, **{**SECTION, "image": "missing:1"}))
    assert "its image can't be pulled; see training_service.image: ErrImagePull: pull access denied" in error
    assert error.endswith("push the image or correct its name, and give image_pull_secrets if its registry asks")


def test_no_gpu_of_that_name(tmp_path: Path, cluster: Cluster) -> None:
    error = only_error(check(tmp_path, 20.0, **SECTION, gpus_per_job=1, gpu_resource="amd.com/gpu"))
    assert "no node can take its pod: 0/1 nodes are available: 1 Insufficient amd.com/gpu" in error
    assert error.endswith("correct gpu_resource and gpus_per_job: no node has so many free of that name")
    error = only_error(check(tmp_path, 20.0, **SECTION, node_selector={"gpu": "H100"}))
    assert error.endswith("correct node_selector: no node has these labels")


def test_no_server(tmp_path: Path, cluster: Cluster) -> None:
    text = Path(cluster.kubeconfig()).read_text()
    (server,) = [line.split("server: ")[1] for line in text.splitlines() if "server: " in line]
    nowhere = tmp_path / "nowhere.yaml"
    nowhere.write_text(text.replace(server, "https://127.0.0.1:9"))
    error = only_error(check(tmp_path, **SECTION, kubeconfig=str(nowhere)))
    assert "Kubernetes' API server at https://127.0.0.1:9 does not answer" in error
    assert error.endswith("correct its address and port, and let no firewall, VPN or proxy keep this machine from it")
