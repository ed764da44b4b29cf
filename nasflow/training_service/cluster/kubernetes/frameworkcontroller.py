"""Runs jobs by FrameworkController: each run is a Framework with a task for each of its machines, mostly one."""

import hashlib

from nasflow.config.services.cluster.operators import FrameworkControllerServiceConfig
from nasflow.training_service.base import JobStatus
from nasflow.training_service.cluster.kubernetes import manifest, states
from nasflow.training_service.cluster.kubernetes.pods import PodService
from nasflow.training_service.cluster.seen import Seen

_NO_RETRY = {"fancyRetryPolicy": False, "maxRetryCount": 0}
_ROLE = "job"
# Codes by which FrameworkController says why a framework ended; positive ones are exit codes of the container.
_STOPPED = -210
_DEADLINE = -1004
_OUT_OF_MEMORY = -1200
_NOT_STARTED = (-1201, -1202, -1203, -1204)


class FrameworkControllerService(PodService[FrameworkControllerServiceConfig]):
    """Runs each job as a Framework with a task for each of its machines, none of which is retried.

    FrameworkController deletes the pod of a Framework that has ended, so how it ended is also read from the Framework.
    """

    kind = "frameworkcontroller"
    resource, api_version, noun = "frameworks", "frameworkcontroller.microsoft.com/v1", "Framework"

    def _name(self, run: str) -> str:
        return f"nasflow{hashlib.sha256(run.encode()).hexdigest()[:32]}"  # it takes letters and digits alone

    def _body(self, meta: states.Object, pod: states.Object, nodes: int) -> states.Object:
        role = {
            "name": _ROLE,
            "taskNumber": nodes,
            "frameworkAttemptCompletionPolicy": {"minFailedTaskCount": 1, "minSucceededTaskCount": nodes},
            "task": {"retryPolicy": _NO_RETRY, "pod": manifest.with_deadline(self._config, pod)},
        }
        spec = {"executionType": "Start", "retryPolicy": _NO_RETRY, "taskRoles": [role]}
        return {"apiVersion": self.api_version, "kind": self.noun, "metadata": meta, "spec": spec}

    def _fate(self, thing: states.Object, began: bool) -> Seen | None:
        return framework_fate(thing, began)


def framework_fate(framework: states.Object, began: bool) -> Seen | None:
    """Return what the status of a Framework says of the end of its run; None while that has not ended."""
    status = framework.get("status") or {}
    attempt = status.get("attemptStatus") or {}
    end = attempt.get("completionStatus")
    if status.get("state") != "Completed" or not end:
        return None
    code = int(end["code"])
    words = states.joined(str(end.get("phrase") or ""), end.get("diagnostics"))
    if code == _OUT_OF_MEMORY or _killed_for_memory(attempt):
        text = "its container ran out of memory; see training_service.memory_gb"
        return Seen(JobStatus.EXITED, text, out_of_memory=True)
    if code >= 0:
        return Seen(JobStatus.EXITED, f"its container ended with exit code {code}: {words}")
    if code in _NOT_STARTED:
        return Seen(JobStatus.EXITED, f"its container can't be started: {words}")
    if code == _STOPPED:
        return Seen(JobStatus.LOST, f"its Framework was stopped by another program: {words}", ran=began)
    if code == _DEADLINE:
        why = f"FrameworkController ended the Framework: {states.TIME_LIMIT}"
        return Seen(JobStatus.LOST, why, ran=began, overtime=True)
    return Seen(JobStatus.LOST, f"FrameworkController ended the Framework: {words}", ran=began)


def _killed_for_memory(attempt: states.Object) -> bool:
    ends = [
        task.get("attemptStatus", {}).get("completionStatus") or {}
        for role in attempt.get("taskRoleStatuses") or []
        for task in role.get("taskStatuses") or []
    ]
    containers = [each for end in ends for each in (end.get("pod") or {}).get("containers") or []]
    return any(each.get("reason") == "OOMKilled" for each in containers)
