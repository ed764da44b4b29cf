"""Kubernetes under faults: etcd, API server, Job controller and scheduler are real, the nodes are stand-ins."""

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.faults.kinds import AGAIN, EPOCH, KINDS, Kind
from tests.faults.scene import Missed, Scene
from tests.faults.service_stage import ServiceStage
from tests.faults.services.base import stage_of
from tests.faults.stage import Stage
from tests.kubernetes import programs
from tests.kubernetes.cluster import Cluster, start_cluster


class OnKubernetes(ServiceStage):
    """A cluster of two nodes."""

    def __init__(self, cluster: Cluster, image: str):
        self.cluster = cluster
        self._nodes = len(cluster.nodes)
        where = {"kubeconfig": cluster.kubeconfig(), "image": image, "python": sys.executable}
        self.section = {"kind": "kubernetes", **where, "poll_seconds": 0.5, "max_jobs": 2}

    def add_node(self) -> None:
        """Add a node with a new name."""
        self.cluster.node(f"node-{self._nodes}")
        self._nodes += 1

    def leftovers(self) -> list[str]:
        from kubernetes import client

        jobs = client.BatchV1Api(self.cluster.api).list_namespaced_job("default").items
        ours = "type!=kubernetes.io/service-account-token"  # which every namespace has
        secrets = client.CoreV1Api(self.cluster.api).list_namespaced_secret("default", field_selector=ours).items
        running = [f"processes of {pod.metadata.name}" for _, pod in self.running()]
        named = [*(f"Job {job.metadata.name}" for job in jobs), *(f"Pod {pod}" for pod in self.cluster.pods(""))]
        return [*named, *(f"Secret {each.metadata.name}" for each in secrets), *running]

    def running(self) -> list[tuple[Any, Any]]:
        """Return the nodes and pods of the processes that run."""
        return [(node, pod) for node in self.cluster.nodes for pod in node.running()]


@contextmanager
def kubernetes(folder: Path, stage: Stage) -> Iterator[ServiceStage]:
    """Start the cluster."""
    if reason := programs.lacking():
        raise Missed(f"needs {reason}")
    from tests.kubernetes.node import IMAGE

    with start_cluster(folder, nodes=2) as cluster:
        yield OnKubernetes(cluster, IMAGE)


def _pod(scene: Scene, rng: random.Random) -> tuple[Any, Any]:
    return rng.choice(scene.await_some(stage_of(scene, OnKubernetes).running, "pod"))


def kill_pod(scene: Scene, rng: random.Random) -> str:
    """SIGKILL of all processes of a pod."""
    node, pod = _pod(scene, rng)
    node.kill(pod)
    return f"killed the processes of pod {pod.metadata.name}"


def delete_pod(scene: Scene, rng: random.Random) -> str:
    """A pod is deleted, as by `kubectl delete pod`."""
    from kubernetes import client

    _, pod = _pod(scene, rng)
    client.CoreV1Api(stage_of(scene, OnKubernetes).cluster.api).delete_namespaced_pod(pod.metadata.name, "default")
    return f"deleted pod {pod.metadata.name}"


def evict_pod(scene: Scene, rng: random.Random) -> str:
    """The node is short of disk, and ends a pod."""
    node, pod = _pod(scene, rng)
    node.evict(pod.metadata.name, "The node was low on resource: ephemeral-storage.")
    return f"evicted pod {pod.metadata.name}"


def silence_node(scene: Scene, rng: random.Random) -> str:
    """A node says nothing for a while; its pods go on."""
    node, _ = _pod(scene, rng)
    seconds = scene.pause(rng, 5.0, 25.0)
    node.answers = False
    try:
        scene.search.tend_for(seconds, silent=True)
    finally:
        node.answers = True
    return f"{node.name} did not answer for {seconds:.0f} s"


def remove_node(scene: Scene, rng: random.Random) -> str:
    """A node ends with all its pods, and is removed; another comes later."""
    stage = stage_of(scene, OnKubernetes)
    node, _ = _pod(scene, rng)
    stage.cluster.remove_node(node)
    seconds = scene.pause(rng, 0.0, 5.0)
    try:
        scene.search.tend_for(seconds, silent=True)
    finally:
        stage.add_node()
    return f"removed {node.name}; another came after {seconds:.1f} s"


def stop_api_server(scene: Scene, rng: random.Random) -> str:
    """SIGKILL of the API server, which is started again after a while."""
    seconds = scene.pause(rng, 0.0, 15.0)
    with stage_of(scene, OnKubernetes).cluster.pause_server():
        scene.search.tend_for(seconds, silent=True)
    return f"killed the API server and started it again after {seconds:.0f} s"


KUBERNETES: dict[str, Kind] = {
    "pod-kill": Kind(5, kill_pod, "SIGKILL of a pod's processes", AGAIN, EPOCH),
    "pod-deleted": Kind(4, delete_pod, "a pod is deleted (`kubectl delete pod`)", AGAIN, "nothing"),
    "pod-evicted": Kind(4, evict_pod, "a pod is evicted by its node", AGAIN, "nothing"),
    "node-silent": Kind(2, silence_node, "a node does not answer for a while", "its pods train", "nothing"),
    "node-removed": Kind(2, remove_node, "a node ends with its pods and is removed", AGAIN, EPOCH),
    "api-server-kill": Kind(
        3, stop_api_server, "SIGKILL of the API server, started again later",
        "jobs train; the controller asks again until it is back", "nothing",
    ),
    "controller-kill": KINDS["controller-kill"],
    "controller-stop": KINDS["controller-stop"],
    "second-controller": KINDS["second-controller"],
}  # fmt: skip
"""By name, as `--only` takes it with `--service kubernetes`."""
