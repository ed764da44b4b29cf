"""A trial on two pods; whatever of it is killed, the next job goes on from the last epoch."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from nasflow.testing.training_service import until
from nasflow.training_service.cluster.kubernetes.pods import PodService
from nasflow.training_service.local.service import RUNNER
from tests.training.wide.on_services import assert_goes_on_after_a_kill

pytest.importorskip("kubernetes", reason="needs the Kubernetes client: install nasflow[kubernetes]")

from tests.training_service.kubernetes.operators import services
from tests.training_service.kubernetes.service import make as kubernetes_job

# the first test to start may have to build Kubernetes
pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]


class Pods:
    """The pods of the job that runs."""

    def __init__(self, cluster: Any, job: int):
        above = {each.pid for each in psutil.Process(job).parents()}
        self._node = cluster.nodes[0]
        self._core = self._node._api
        self.programs = {pod.metadata.name: self._node._pods[pod.metadata.uid].process for pod in self._node.running()}
        (self.first,) = [name for name, process in self.programs.items() if process.pid in above]
        (self.other,) = self.programs.keys() - {self.first}

    def kill_rank_of_other(self) -> None:
        """SIGKILL."""
        (job,) = psutil.Process(self.programs[self.other].pid).children()
        (rank,) = job.children()
        rank.kill()

    def kill(self, name: str) -> None:
        """SIGKILL of all in a pod."""
        (pod,) = [pod for pod in self._node.running() if pod.metadata.name == name]
        self._node.kill(pod)

    def delete(self, name: str, **options: int) -> None:
        self._core.delete_namespaced_pod(name, "default", **options)


CASES: dict[str, tuple[Callable[..., PodService], Callable[[Pods], None]]] = {
    "Job, a rank": (kubernetes_job, Pods.kill_rank_of_other),
    "Job, its pod": (kubernetes_job, lambda pods: pods.kill(pods.first)),
    "PyTorchJob, the other pod": (services.pytorch_job, lambda pods: pods.kill(pods.other)),
    "TrainJob, its pod is deleted": (services.train_job, lambda pods: pods.delete(pods.first)),
    "Framework, the other pod is deleted": (services.framework, lambda pods: pods.delete(pods.other)),
}


@pytest.mark.parametrize(("make", "kill"), CASES.values(), ids=CASES)
def test_a_job_on_two_pods_goes_on_after_a_kill(
    make: Callable[..., PodService], kill: Callable[[Pods], None], operators: Any, root: Path, tmp_path: Path
) -> None:
    service = make(root, runner=RUNNER)
    try:
        assert_goes_on_after_a_kill(
            service, root, tmp_path / "solo", lambda job: kill(Pods(operators, job)), devices=1, nodes=2
        )
        until(lambda: not operators.nodes[0].running(), "end of all pods", 90)
    finally:
        service.cleanup()
