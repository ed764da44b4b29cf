"""The services for operators keep the contract on a real API server; the operators are the tests' own."""

import pytest

from nasflow.testing.training_service import TrainingServiceContract

pytest.importorskip("kubernetes", reason="needs the Kubernetes client: install nasflow[kubernetes]")

from tests.handful import handful
from tests.training_service.kubernetes.operators import services

# the first test to start may have to build Kubernetes
pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]


class OnAnOperator(TrainingServiceContract):
    """One operator keeps all of it, the others what they do of it; the rest is theirs all (`PodService`)."""

    @pytest.fixture(autouse=True)
    def cluster(self, operators):
        self.kubernetes = operators

    @pytest.fixture
    def root(self, tmp_path):
        return tmp_path / "it's a $(root) 100%d"

    def lose(self, service, handle):
        """Its node is short of memory."""
        pod = services.pod_of(self.kubernetes, service, handle)
        self.kubernetes.nodes[0].evict(pod, "The node was low on resource: memory.")


class TestPyTorchJobs(OnAnOperator):
    factory = f"{services.__file__}:pytorch_job"


@handful
class TestTrainJobs(OnAnOperator):
    factory = f"{services.__file__}:train_job"


@handful
class TestAdaptDLJobs(OnAnOperator):
    factory = f"{services.__file__}:adaptdl_job"


@handful
class TestFrameworks(OnAnOperator):
    factory = f"{services.__file__}:framework"
