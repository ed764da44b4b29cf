"""Runs jobs by Kubeflow's Training Operator: each run is a PyTorchJob."""

from typing import Any

from nasflow.config.services.operators import KubeflowServiceConfig
from nasflow.training_service.cluster.base import Seen
from nasflow.training_service.cluster.kubernetes import manifest, states
from nasflow.training_service.cluster.kubernetes.pods import PodService

_LONGEST = 44  # characters: with `-master-0` it becomes the name of a Service, which may have 63


class PyTorchJobService(PodService[KubeflowServiceConfig]):
    """Runs each job as a PyTorchJob that has a master and no workers."""

    kind = "kubeflow"
    resource, api_version, noun = "pytorchjobs", "kubeflow.org/v1", "PyTorchJob"
    container = "pytorch"  # the operator looks for this name
    stay = True

    def _name(self, run: str) -> str:
        return manifest.job_name(run, _LONGEST)

    def _body(self, meta: states.Object, pod: states.Object) -> states.Object:
        policy: dict[str, Any] = {
            "cleanPodPolicy": "None",  # how a container ended is read from its pod
            "backoffLimit": 0,
            "ttlSecondsAfterFinished": self._config.ttl_seconds_after_finished,
        }
        master = {"replicas": 1, "restartPolicy": "Never", "template": manifest.with_deadline(self._config, pod)}
        spec = {"runPolicy": policy, "pytorchReplicaSpecs": {"Master": master}}
        return {"apiVersion": self.api_version, "kind": self.noun, "metadata": meta, "spec": spec}

    def _fate(self, thing: states.Object, began: bool) -> Seen | None:
        return states.fate_of(thing, began, "Succeeded")
