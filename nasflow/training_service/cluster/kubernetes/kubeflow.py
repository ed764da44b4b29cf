"""Runs jobs by Kubeflow: each run is a PyTorchJob of its Training Operator, or a TrainJob of Kubeflow Trainer."""

import hashlib
import json
from pathlib import Path
from typing import Any

from nasflow.config.job_secrets import JobSecrets
from nasflow.config.services.cluster.operators import KubeflowServiceConfig
from nasflow.training_service.cluster.kubernetes import manifest, states
from nasflow.training_service.cluster.kubernetes.api import RefusedError
from nasflow.training_service.cluster.kubernetes.pods import PodService
from nasflow.training_service.cluster.runs import Run
from nasflow.training_service.cluster.seen import Seen
from nasflow.training_service.local.service import RUNNER

_LONGEST = 44  # characters: with `-master-0` or `-node-0-0-abcde` it becomes the name of a Service or pod, at most 63


class PyTorchJobService(PodService[KubeflowServiceConfig]):
    """Runs each job as a PyTorchJob that has a master, or, if the job has several machines, a worker for each.

    Beside a master, the operator adds to workers a container that waits for it, with an image that a cluster may lack.
    """

    kind = "kubeflow"
    resource, api_version, noun = "pytorchjobs", "kubeflow.org/v1", "PyTorchJob"
    container = "pytorch"  # the operator looks for this name
    stay = True

    def _name(self, run: str) -> str:
        return manifest.job_name(run, _LONGEST)

    def _body(self, meta: states.Object, pod: states.Object, nodes: int) -> states.Object:
        policy: dict[str, Any] = {
            # How a container ended is read from its pod. With a `backoffLimit`, the operator would remove that first.
            "cleanPodPolicy": "None",
            "ttlSecondsAfterFinished": self._config.ttl_seconds_after_finished,
        }
        replicas = {"replicas": nodes, "restartPolicy": "Never", "template": manifest.with_deadline(self._config, pod)}
        spec = {"runPolicy": policy, "pytorchReplicaSpecs": {"Master" if nodes == 1 else "Worker": replicas}}
        return {"apiVersion": self.api_version, "kind": self.noun, "metadata": meta, "spec": spec}

    def _fate(self, thing: states.Object, began: bool) -> Seen | None:
        return states.fate_of(thing, began, "Succeeded")


class TrainJobService(PodService[KubeflowServiceConfig]):
    """Runs each job as a TrainJob. The pod template, but for the command, is in a TrainingRuntime.

    Versions of Kubeflow Trainer differ in how a TrainJob changes the pod of its runtime, but not in what a runtime is.
    A runtime is named after its content, and used by all runs of the root with the same settings.
    """

    kind = "kubeflow"
    resource, api_version, noun = "trainjobs", "trainer.kubeflow.org/v1alpha1", "TrainJob"
    besides = "trainingruntimes"
    container = "node"  # Kubeflow Trainer looks for this name
    job_label = "jobset.sigs.k8s.io/jobset-name"

    def _name(self, run: str) -> str:
        return manifest.job_name(run, _LONGEST)

    def _create(self, run: Run, nodes: int = 1, *, dry_run: bool = False) -> None:
        try:
            self._api.create(self.besides, self._runtime(self._template(run, nodes)), dry_run=dry_run)
        except RefusedError as error:
            if not error.exists:
                raise
        if not dry_run:  # without its runtime, a TrainJob is refused
            super()._create(run, nodes)

    def _body(self, meta: states.Object, pod: states.Object, nodes: int) -> states.Object:
        (command,) = (each["command"] for each in pod["spec"]["containers"] if each["name"] == self.container)
        runtime = self._runtime(pod)
        spec = {
            "runtimeRef": {
                "apiGroup": self.api_version.partition("/")[0],
                "kind": runtime["kind"],
                "name": runtime["metadata"]["name"],
            },
            "trainer": {"numNodes": nodes, "command": command},
        }
        return {"apiVersion": self.api_version, "kind": self.noun, "metadata": meta, "spec": spec}

    def _runtime(self, pod: states.Object) -> states.Object:
        """Return the TrainingRuntime of a run's pod template."""
        meta = {**pod["metadata"], "labels": _without(pod["metadata"]["labels"], manifest.NAME)}
        meta["annotations"] = _without(meta["annotations"], manifest.NAME)
        containers = [
            _without(each, "command") if each["name"] == self.container else each for each in pod["spec"]["containers"]
        ]
        shared = {"metadata": meta, "spec": {**pod["spec"], "containers": containers}}
        template = manifest.with_deadline(self._config, shared)
        node = {
            "name": self.container,
            "template": {
                "metadata": {"labels": {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}},
                "spec": {"backoffLimit": 0, "template": template},
            },
        }
        spec = {"mlPolicy": {"numNodes": 1}, "template": {"spec": {"replicatedJobs": [node]}}}
        content = hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()[:16]
        return {
            "apiVersion": self.api_version,
            "kind": "TrainingRuntime",
            "metadata": {"name": f"{self._prefix}{content}", "labels": meta["labels"]},
            "spec": spec,
        }

    def _fate(self, thing: states.Object, began: bool) -> Seen | None:
        return states.fate_of(thing, began)


def kubeflow_service(
    config: KubeflowServiceConfig, root: Path, runner: str = RUNNER, *, secrets: JobSecrets
) -> PyTorchJobService | TrainJobService:
    """Return the service for the objects that the config names."""
    service = TrainJobService if config.job_kind == "TrainJob" else PyTorchJobService
    return service(config, root, runner, secrets)


def _without(values: states.Object, name: str) -> states.Object:
    return {key: value for key, value in values.items() if key != name}
