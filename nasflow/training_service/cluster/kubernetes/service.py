"""Runs jobs on a Kubernetes cluster: each run is a Job of the API group `batch/v1`."""

from nasflow.config.services.cluster.kubernetes import KubernetesServiceConfig
from nasflow.training_service.cluster.kubernetes import manifest, states
from nasflow.training_service.cluster.kubernetes.pods import PodService
from nasflow.training_service.cluster.seen import Seen


class KubernetesService(PodService[KubernetesServiceConfig]):
    """Runs each job as a Kubernetes Job with the run's name, which starts its pods and never restarts them."""

    kind = "kubernetes"
    resource, api_version, noun = "jobs", "batch/v1", "Job"
    stay, open_ones = True, "status.successful=0"

    def _body(self, meta: states.Object, pod: states.Object, nodes: int) -> states.Object:
        return manifest.job(self._config, meta, pod, nodes)

    def _fate(self, thing: states.Object, began: bool) -> Seen | None:
        return states.fate_of(thing, began)
