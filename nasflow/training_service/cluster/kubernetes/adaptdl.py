"""Runs jobs by AdaptDL: each run is an AdaptDLJob that has one replica at all times."""

from nasflow.config.services.cluster.operators import AdaptdlServiceConfig
from nasflow.training_service.base import JobStatus
from nasflow.training_service.cluster.kubernetes import manifest, states
from nasflow.training_service.cluster.kubernetes.pods import PodService
from nasflow.training_service.cluster.seen import Seen

_LONGEST = 44  # characters; pods have longer names


class AdaptdlService(PodService[AdaptdlServiceConfig]):
    """Runs each job as an AdaptDLJob with one replica.

    Where AdaptDL preempts a job and starts it again, the run is lost and nasflow deletes the AdaptDLJob.
    """

    kind = "adaptdl"
    resource, api_version, noun = "adaptdljobs", "adaptdl.petuum.com/v1", "AdaptDLJob"

    def _name(self, run: str) -> str:
        return manifest.job_name(run, _LONGEST)

    def _body(self, meta: states.Object, pod: states.Object, nodes: int) -> states.Object:
        spec = {
            "minReplicas": 1,
            "maxReplicas": 1,
            "preemptible": self._config.preemptible,
            "template": manifest.with_deadline(self._config, pod),
        }
        return {"apiVersion": self.api_version, "kind": self.noun, "metadata": meta, "spec": spec}

    def _fate(self, thing: states.Object, began: bool) -> Seen | None:
        status = thing.get("status") or {}
        if status.get("phase") == "Succeeded":
            return Seen(JobStatus.EXITED, "the AdaptDLJob is complete, and its pod is gone")
        if status.get("phase") == "Failed":
            words = states.joined(status.get("reason"), str(status.get("message") or ""))
            return Seen(JobStatus.LOST, f"AdaptDL ended the AdaptDLJob, and its pod is gone: {words}", ran=began)
        return None
