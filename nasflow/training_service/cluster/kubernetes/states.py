"""What the states of a Job and of its pods say about a run. The objects are as the API server returns them.

A Job here is whatever is submitted for a run: a Job of Kubernetes, or an object of an operator.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any

from nasflow.clean_text import clean_text
from nasflow.training_service.base import JobStatus
from nasflow.training_service.cluster.kubernetes import manifest
from nasflow.training_service.cluster.seen import Seen

Object = dict[str, Any]
Lasting = Callable[[str], float]
Fate = Callable[[Object, bool], Seen | None]
"""What the state of a Job says of the end of a run that has begun or has not; None while it has not ended."""

SAID_AFTER = 60.0
"""Seconds that a pod may be unable to start until that is said, or, where no time can mend it, the run ends."""
NODE_CONFIRMS_WITHIN = 60.0
"""Seconds after the end of its grace period until a pod is gone; the node of one that is not no longer answers."""

POD_DELETED = "its pod was deleted: by hand, by a preemption, or with its node"
"""The reason of a run whose pod another has replaced, or shall replace."""

# A container's reasons to wait that mean that it can't start (kubelet's `images` and `kuberuntime`).
_CAN_NOT_START = {
    **dict.fromkeys(
        ("ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "InvalidImageName", "ImageInspectError"),
        "its image can't be pulled; see training_service.image",
    ),
    **dict.fromkeys(
        ("CreateContainerConfigError", "CreateContainerError", "RunContainerError"), "its container can't be started"
    ),
}
TIME_LIMIT = "it reached its time limit; set training_service.time_limit to what jobs need"
"""The reason of a run that took too long."""

# Reasons of a failed pod, or of its condition `DisruptionTarget`.
_WHY = {
    "DeadlineExceeded": TIME_LIMIT,
    "DeletionByPodGC": "its node is gone",
    "DeletionByTaintManager": "its node is to run nothing more",
    "Evicted": "it was evicted by its node",
    "EvictionByEvictionAPI": "it was evicted, as when a node is drained",
    "NodeLost": "its node no longer answers",
    "NodeShutdown": "its node was shut down",
    "Preempting": "it was preempted by its node for a more important pod",
    "PreemptionByScheduler": "it was preempted by a pod of higher priority",
    "Shutdown": "its node was shut down",
    "Terminated": "its node was shut down",
    "TerminationByKubelet": "its node ended it",
}


class Clock:
    """Measures for how many seconds a state has been seen in each look without a break."""

    def __init__(self) -> None:
        self._before: dict[str, float] = {}
        self._now: dict[str, float] = {}

    def __call__(self, state: str) -> float:
        """Return since when a state, told by a text that is unique, lasts."""
        now = time.monotonic()
        return now - self._now.setdefault(state, self._before.get(state, now))

    def look(self) -> None:
        """Begin the next look: what is not seen in it has ended."""
        self._before, self._now = self._now, {}


def seen(
    job: Object | None,
    pods: Sequence[Object],
    began: bool,
    lasting: Lasting,
    fate: Fate,
    *,
    container: str | None = None,
) -> Seen:
    """Return the state of a run.

    Args:
        job: its Job; None if that was deleted.
        pods: its pods: old Job controllers replace one that was deleted, and a lost node's stays beside the new one.
            Of several that train together, one that has failed ends the run, and the run waits while one does.
        began: whether its program had begun before these objects were read.
        lasting: seconds that a state has lasted, as a `Clock` measures them.
        fate: reads the state of the Job, which counts where no pod is left to say more.
        container: with its end a pod has ended, whatever else goes on there; None: with the end of all containers.
    """
    pods = [_as_its_container(pod, container) for pod in pods]
    count = max((pods_of(thing) for thing in (job, *pods) if thing is not None), default=1)
    together = count > 1
    ordered = sorted(pods, key=lambda pod: str(_created(pod)))
    of_pods = [_of_pod(pod, began and not together, lasting) for pod in ordered]
    if together:
        failed = [of_pod for pod, of_pod in zip(ordered, of_pods, strict=True) if _has_failed(pod, of_pod)]
        waiting = [of_pod for of_pod in of_pods if of_pod.status is JobStatus.PENDING]
        of_pods = failed or waiting or of_pods
        if job is not None and 0 < len(pods) < count and not failed:
            return Seen(JobStatus.PENDING, f"the {_kind(job)} has {len(pods)} of {count} pods yet", ran=False)
    for status in (JobStatus.RUNNING, JobStatus.LOST, JobStatus.EXITED):
        found = next((each for each in of_pods if each.status is status), None)
        if status is JobStatus.LOST and job is not None and overdue(job):
            why = f"Kubernetes ended the {_kind(job)}: {TIME_LIMIT}"
            return Seen(JobStatus.LOST, why, ran=began or bool(pods), overtime=True)
        if found is not None:
            return found
    if job is not None and (end := fate(job, began)):
        return end
    if of_pods:
        return of_pods[0]
    return Seen(JobStatus.PENDING, f"the {_kind(job)} has no pod yet", ran=began)


def fate_of(job: Object, began: bool, complete: str = "Complete") -> Seen | None:
    """Return what the conditions of a Job say of the end of its run; `complete` is the one of success."""
    if failure := condition(job, "Failed"):
        words = joined(failure.get("reason"), failure.get("message"))
        return Seen(JobStatus.LOST, f"Kubernetes ended the {_kind(job)}, and its pod is gone: {words}", ran=began)
    if condition(job, complete):
        return Seen(JobStatus.EXITED, f"the {_kind(job)} is complete, and its pod is gone")
    return None


def pods_of(thing: Object) -> int:
    """Return how many pods the run of a Job or pod has."""
    annotations = (thing.get("metadata") or {}).get("annotations") or {}
    return int(annotations.get(manifest.NODES, 1))


def _as_its_container(pod: Object, container: str | None) -> Object:
    """Return a pod as it will be once this container, if that has ended, is no longer outlived by a sidecar."""
    status = pod.get("status") or {}
    own = [each for each in status.get("containerStatuses") or [] if each.get("name") == container]
    end = own[0].get("state", {}).get("terminated") if own else None
    if not end or status.get("phase") != "Running" or pod["metadata"].get("deletionTimestamp"):
        return pod
    phase = "Failed" if end.get("exitCode") else "Succeeded"
    return {**pod, "status": {**status, "phase": phase, "containerStatuses": own}}


def _has_failed(pod: Object, found: Seen) -> bool:
    return found.status is JobStatus.LOST or (pod.get("status") or {}).get("phase") == "Failed"


def _of_pod(pod: Object, began: bool, lasting: Lasting) -> Seen:
    status, node = pod.get("status") or {}, (pod.get("spec") or {}).get("nodeName")
    phase = status.get("phase")
    if phase == "Failed":
        return _failed(pod, node)
    if phase == "Succeeded":
        return Seen(JobStatus.EXITED, f"its container ended on {node} with exit code 0")
    meta = pod["metadata"]
    if meta.get("deletionTimestamp"):
        gone_after = (meta.get("deletionGracePeriodSeconds") or 0) + NODE_CONFIRMS_WITHIN
        if lasting(f"{meta['uid']} is being deleted") > gone_after:
            return Seen(JobStatus.LOST, f"its node {node} no longer answers")
        return Seen(JobStatus.RUNNING if node else JobStatus.PENDING, "its pod is being deleted", ran=bool(node))
    if phase != "Pending":
        return Seen(JobStatus.RUNNING)
    if began and not node:
        return Seen(JobStatus.LOST, POD_DELETED)
    return _waiting(meta["uid"], status, lasting)


def _waiting(uid: str, status: Object, lasting: Lasting) -> Seen:
    reason, message = _why_waiting(status)
    if reason in _CAN_NOT_START:
        why = f"{_CAN_NOT_START[reason]}: {joined(reason, message)}"
        if lasting(f"{uid} can't start") >= SAID_AFTER:
            return Seen(JobStatus.LOST, why, ran=False)
        return Seen(JobStatus.PENDING, why, ran=False)
    scheduled = condition({"status": status}, "PodScheduled", "False")
    if scheduled.get("reason") == "Unschedulable":
        return Seen(JobStatus.PENDING, f"no node can take its pod: {joined(scheduled.get('message'))}", ran=False)
    return Seen(JobStatus.PENDING, f"its pod waits: {joined(reason or 'to be scheduled', message)}", ran=False)


def _why_waiting(status: Object) -> tuple[str, str]:
    """Return the reason and the message of the first container that waits."""
    containers = [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]
    states = [container.get("state", {}).get("waiting") for container in containers]
    first: Object = next((state for state in states if state), {})
    return first.get("reason") or "", first.get("message") or ""


def _failed(pod: Object, node: str | None) -> Seen:
    status = pod["status"]
    containers = [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]
    ends = [end for each in containers if (end := each.get("state", {}).get("terminated"))]
    if any(end.get("reason") == "OOMKilled" for end in ends):
        text = f"its container on {node} ran out of memory; see training_service.memory_gb"
        return Seen(JobStatus.EXITED, text, out_of_memory=True)
    disrupted = condition(pod, "DisruptionTarget")
    reason, message = status.get("reason"), status.get("message")
    if disrupted and reason not in _WHY:
        reason, message = disrupted.get("reason"), disrupted.get("message")
    if reason or not ends:
        why = _WHY.get(reason or "", reason or "its pod failed")
        text = f"Kubernetes ended its pod{_on(node)}: {joined(why, message)}"
        return Seen(JobStatus.LOST, text, ran=bool(node), overtime=why == TIME_LIMIT)
    worst = max(ends, key=lambda end: int(end.get("exitCode") or 0))
    words = joined(worst.get("reason"), worst.get("message"))
    return Seen(JobStatus.EXITED, f"its container ended{_on(node)} with exit code {worst.get('exitCode')}: {words}")


def condition(thing: Object, kind: str, status: str = "True") -> Object:
    """Return a condition of an object that has this status; empty if there is none."""
    conditions = (thing.get("status") or {}).get("conditions") or []
    return next((each for each in conditions if each.get("type") == kind and each.get("status") == status), {})


def overdue(job: Object) -> bool:
    """Whether a Job was ended because it reached its time limit."""
    return condition(job, "Failed").get("reason") == "DeadlineExceeded"


def _kind(job: Object | None) -> str:
    return str((job or {}).get("kind") or "Job")  # lists leave it out of objects of Kubernetes' own


def _created(pod: Object) -> object:
    return pod["metadata"].get("creationTimestamp")


def _on(node: str | None) -> str:
    return f" on {node}" if node else ""


def joined(*parts: str | None) -> str:
    """Return texts of Kubernetes in one line, the empty ones left out."""
    return clean_text(": ".join(" ".join(part.split())[:300] for part in parts if part))
