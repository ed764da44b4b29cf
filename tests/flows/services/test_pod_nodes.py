"""Trials on two pods of a Kubernetes, through `nasflow run`."""

import signal
import sys
import time
from typing import Any

import pytest

from tests.flows.searches import PrefectServer, Searches
from tests.flows.services.test_wide_elsewhere import KILLED_AFTER, epochs, metrics, write
from tests.kubernetes.cluster import Cluster, kubernetes_cluster
from tests.kubernetes.node import IMAGE

__all__ = ["kubernetes_cluster"]

# the first test to start may have to build Kubernetes
pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]


def section(cluster: Cluster) -> dict[str, Any]:
    where = {"kubeconfig": cluster.kubeconfig(), "image": IMAGE, "python": sys.executable}
    return {"kind": "kubernetes", **where, "max_jobs": 1, "poll_seconds": 0.5}


def test_a_pod_is_deleted_and_the_search_interrupted(
    searches: Searches, prefect_server: PrefectServer, kubernetes_cluster: Cluster
) -> None:
    """The second time it has two devices in one pod instead of one in each of two."""
    write(searches, section(kubernetes_cluster), parallel={"strategy": "fsdp", "devices": 1, "nodes": 2})
    (node,) = kubernetes_cluster.nodes
    with searches.start("run", "search.yaml") as process:
        _await(searches, process, 1)
        names = [pod.metadata.name for pod in node.running()]
        assert len(names) == 2
        node._api.delete_namespaced_pod(names[1], "default")
        _await(searches, process, KILLED_AFTER)
        process.send_signal(signal.SIGINT)
        assert process.wait(120) == 130, process.communicate()
    assert not node.running(), "no pod outlives the search"
    write(searches, section(kubernetes_cluster), parallel={"strategy": "fsdp", "devices": 2})
    searches.run("run", "search.yaml")
    assert epochs(searches) == [*range(1, 7)], "each once"
    found = metrics(searches)
    assert not (searches.folder / "nasflow-runs/search/trials/00000/ranks").exists(), "the weights are whole"
    (searches.folder / "solo").mkdir()
    solo = Searches(searches.folder / "solo", prefect_server)
    write(solo, {"kind": "local", "slots": 1}, parallel=None)
    solo.run("run", "search.yaml")
    assert found == pytest.approx(metrics(solo), abs=1e-6), "as one process; torchmetrics computes in single precision"


def _await(searches: Searches, process: Any, count: int) -> None:
    while len(epochs(searches)) < count:
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
