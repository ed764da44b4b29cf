"""Controllers that act as operators do: they make the pods of custom resources and report how these end.

What the real ones do is known from their sources, and for FrameworkController from a recording of it. Each is a thread
that looks at all objects of its kind again and again, and does for each what is missing.
"""

import copy
import threading
import traceback
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

from kubernetes import client

from tests.kubernetes.crds import CRDS
from tests.kubernetes.node import now

_TICK = 0.1  # seconds
Object = dict[str, Any]


class Operator(ABC):
    """A controller of one kind of objects in the namespace `default`. Errors of a look go to a file."""

    kind: str
    job_label: str

    def __init__(self, api: client.ApiClient, log: Path):
        spec = CRDS[self.kind]["spec"]
        self.where = (spec["group"], spec["versions"][0]["name"], "default", spec["names"]["plural"])
        self.objects, self.core, self._log = client.CustomObjectsApi(api), client.CoreV1Api(api), log
        self.batch = client.BatchV1Api(api)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    @abstractmethod
    def tend(self, thing: Object, pods: list[Any]) -> None:
        """Do what an object needs next. `pods` are those with its name in the label of its kind."""

    def owner(self, thing: Object) -> Object:
        version, name, uid = thing["apiVersion"], thing["metadata"]["name"], thing["metadata"]["uid"]
        return {"apiVersion": version, "kind": self.kind, "name": name, "uid": uid, "controller": True}

    def create_pod(self, template: Object, name: str, labels: dict[str, str], owner: Object) -> None:
        meta = template.get("metadata") or {}
        metadata = {
            "name": name,
            "labels": (meta.get("labels") or {}) | labels,
            "annotations": meta.get("annotations") or {},
            "ownerReferences": [owner],
        }
        try:
            self.core.create_namespaced_pod("default", {"metadata": metadata, "spec": template["spec"]})
        except client.ApiException as error:
            if error.status != 409:
                raise

    def _work(self) -> None:
        while not self._stop.wait(_TICK):
            try:
                things = self.objects.list_namespaced_custom_object(*self.where)["items"]
                pods = self.core.list_namespaced_pod("default", label_selector=self.job_label).items
                for thing in things:
                    if not thing["metadata"].get("deletionTimestamp"):
                        name = thing["metadata"]["name"]
                        self.tend(thing, [pod for pod in pods if pod.metadata.labels[self.job_label] == name])
            except Exception:  # whatever it was, the next tick tries again
                with self._log.open("a") as log:
                    traceback.print_exc(file=log)


class TrainingOperator(Operator):
    """Kubeflow's, for PyTorchJobs with the restart policy Never: of a master, or of workers."""

    kind = "PyTorchJob"
    job_label = "training.kubeflow.org/job-name"

    def tend(self, thing: Object, pods: list[Any]) -> None:
        had = {each["type"]: each["status"] for each in (thing.get("status") or {}).get("conditions") or []}
        if "True" in (had.get("Succeeded"), had.get("Failed")):
            return
        replicas = {kind: each["replicas"] for kind, each in thing["spec"]["pytorchReplicaSpecs"].items()}
        assert len(replicas) == 1, "beside a master, workers would have a container that waits for it"
        assert "backoffLimit" not in thing["spec"]["runPolicy"], "it would remove pods that have failed"
        phases = [pod.status.phase for pod in pods]
        if not had:
            self._report(thing, Created="True")
        elif "Failed" in phases:
            self._report(thing, Created="True", Running="False", Failed="True")
        elif phases == sum(replicas.values()) * ["Succeeded"]:
            self._report(thing, Created="True", Running="False", Succeeded="True")
        elif len(pods) < sum(replicas.values()):
            for kind, count in replicas.items():
                for index in range(count):
                    self._start(thing, kind, index, sum(replicas.values()))
        elif "Running" in phases and had.get("Running") != "True":
            self._report(thing, Created="True", Running="True")

    def _start(self, thing: Object, kind: str, index: int, count: int) -> None:
        name, replica, kind_there = thing["metadata"]["name"], thing["spec"]["pytorchReplicaSpecs"][kind], kind.lower()
        containers = copy.deepcopy(replica["template"]["spec"]["containers"])
        spec = {**replica["template"]["spec"], "containers": containers, "restartPolicy": replica["restartPolicy"]}
        (main,) = [each for each in containers if each["name"] == "pytorch"]
        address = {"MASTER_ADDR": f"{name}-{kind_there}-0", "MASTER_PORT": "23456"}
        given = {**address, "WORLD_SIZE": str(count), "RANK": str(index), "PYTHONUNBUFFERED": "0"}
        main["env"] = [*(main.get("env") or []), *({"name": key, "value": value} for key, value in given.items())]
        labels = {
            self.job_label: name,
            "training.kubeflow.org/replica-type": kind_there,
            "training.kubeflow.org/replica-index": str(index),
            "training.kubeflow.org/operator-name": "pytorchjob-controller",
            **({"training.kubeflow.org/job-role": "master"} if kind == "Master" else {}),
        }
        template = {**replica["template"], "spec": spec}
        self.create_pod(template, f"{name}-{kind_there}-{index}", labels, self.owner(thing))

    def _report(self, thing: Object, **conditions: str) -> None:
        """Kubeflow leaves `Running` in place with the status False, and later conditions behind it."""
        made = [
            {
                "type": kind,
                "status": status,
                "reason": f"PyTorchJob{kind}",
                "message": f"PyTorchJob {thing['metadata']['name']} is {kind.lower()}",
                "lastTransitionTime": now(),
                "lastUpdateTime": now(),
            }
            for kind, status in conditions.items()
        ]
        body = {"status": {"conditions": made}}
        self.objects.patch_namespaced_custom_object_status(*self.where, thing["metadata"]["name"], body)


class Trainer(Operator):
    """Kubeflow Trainer, for TrainJobs with a TrainingRuntime of one replicated Job, and what JobSet does for it."""

    kind = "TrainJob"
    job_label = "jobset.sigs.k8s.io/jobset-name"

    def tend(self, thing: Object, pods: list[Any]) -> None:
        if (thing.get("status") or {}).get("conditions"):
            return
        name = thing["metadata"]["name"]
        found = self.batch.list_namespaced_job("default", label_selector=f"{self.job_label}={name}").items
        if not found:
            self._start(thing)
            return
        ended = [each.type for each in found[0].status.conditions or [] if each.status == "True"]
        if ended:
            why = {"Complete": "JobsCompleted", "Failed": "JobsFailed"}[ended[0]]
            condition = {"type": ended[0], "status": "True", "reason": why, "message": f"jobset is {ended[0].lower()}"}
            body = {"status": {"conditions": [{**condition, "lastTransitionTime": now()}]}}
            self.objects.patch_namespaced_custom_object_status(*self.where, name, body)

    def _start(self, thing: Object) -> None:
        name, wanted = thing["metadata"]["name"], thing["spec"]
        where = (*self.where[:3], "trainingruntimes", wanted["runtimeRef"]["name"])
        runtime = self.objects.get_namespaced_custom_object(*where)["spec"]["template"]["spec"]
        (node,) = runtime["replicatedJobs"]
        assert node["template"]["metadata"]["labels"]["trainer.kubeflow.org/trainjob-ancestor-step"] == "trainer"
        labels = {self.job_label: name, "jobset.sigs.k8s.io/replicatedjob-name": node["name"]}
        spec = node["template"]["spec"]
        meta = spec["template"]["metadata"]
        meta["labels"] = {**meta["labels"], **labels}
        (main,) = [each for each in spec["template"]["spec"]["containers"] if each["name"] == "node"]
        main["command"] = wanted["trainer"]["command"]
        metadata = {"name": f"{name}-node-0", "labels": labels, "ownerReferences": [self.owner(thing)]}
        count = wanted["trainer"]["numNodes"]
        spec |= {"parallelism": count, "completions": count}
        self.batch.create_namespaced_job("default", {"metadata": metadata, "spec": spec})


class FrameworkController(Operator):
    """FrameworkController, for Frameworks with one role, the tasks of which are not retried."""

    kind = "Framework"
    job_label = "FC_FRAMEWORK_NAME"

    def tend(self, thing: Object, pods: list[Any]) -> None:
        status = thing.get("status") or {}
        name, state = thing["metadata"]["name"], status.get("state")
        if state == "Completed":
            return
        if state == "AttemptDeletionPending":  # the end is on record, so the pod may go
            for pod in pods:
                if not pod.metadata.deletion_timestamp:
                    self.core.delete_namespaced_pod(pod.metadata.name, "default")
            if not pods:
                self._report(thing, {**status, "state": "Completed"})
        elif thing["spec"]["executionType"] == "Stop":
            self._complete(thing, -210, "StopFrameworkRequested", "User has requested to stop the Framework")
        elif state is None:
            role = thing["spec"]["taskRoles"][0]
            for index in map(str, range(role["taskNumber"])):
                labels = {self.job_label: name, "FC_TASKROLE_NAME": role["name"], "FC_TASK_INDEX": index}
                self.create_pod(role["task"]["pod"], f"{name}-{role['name']}-{index}", labels, self.owner(thing))
            self._report(thing, {"state": "AttemptPreparing", "attemptStatus": {"id": 0}})
        else:
            self._follow(thing, thing["spec"]["taskRoles"][0], pods)

    def _follow(self, thing: Object, role: Object, pods: list[Any]) -> None:
        ended = {phase: [pod for pod in pods if pod.status.phase == phase] for phase in ("Succeeded", "Failed")}
        policy = role["frameworkAttemptCompletionPolicy"]
        if len(ended["Failed"]) >= policy["minFailedTaskCount"]:
            self._complete(thing, *_completion(ended["Failed"][0]))
        elif len(ended["Succeeded"]) >= policy["minSucceededTaskCount"]:
            self._complete(thing, *_completion(ended["Succeeded"][0]))
        elif len(pods) < role["taskNumber"]:
            self._complete(thing, -100, "PodExternalDeleted", "Pod was deleted by others")
        elif thing["status"]["state"] != "AttemptRunning" and any(pod.status.phase == "Running" for pod in pods):
            self._report(thing, {**thing["status"], "state": "AttemptRunning"})

    def _complete(self, thing: Object, code: int, phrase: str, diagnostics: str, containers: Any = ()) -> None:
        kind = "Failed" if code else "Succeeded"
        end = {"code": code, "phrase": phrase, "diagnostics": diagnostics, "type": {"name": kind, "attributes": []}}
        task = {"attemptStatus": {"completionStatus": {**end, "pod": {"containers": list(containers)}}}}
        roles = [{"name": "job", "taskStatuses": [{"index": 0, **task}]}]
        attempt = {"id": 0, "completionStatus": end, "taskRoleStatuses": roles}
        self._report(thing, {"state": "AttemptDeletionPending", "attemptStatus": attempt})

    def _report(self, thing: Object, status: Object) -> None:
        body = {"status": status}
        self.objects.patch_namespaced_custom_object(*self.where, thing["metadata"]["name"], body)


class AdaptDL(Operator):
    """AdaptDL's controller, for jobs of one replica; a preemptible one that ended by SIGTERM is started again."""

    kind = "AdaptDLJob"
    job_label = "adaptdl/job"

    def tend(self, thing: Object, pods: list[Any]) -> None:
        status = thing.get("status") or {}
        phase, group, name = status.get("phase"), status.get("group", 0), thing["metadata"]["name"]
        if phase in ("Succeeded", "Failed"):
            return
        (pod,) = [each for each in pods if each.metadata.labels["adaptdl/group"] == str(group)] or [None]
        if pod is None:
            labels = {self.job_label: name, "adaptdl/group": str(group), "adaptdl/rank": "0"}
            pod_name = f"{name}-{thing['metadata']['uid'][:8]}-{group}-0"
            self.create_pod(thing["spec"]["template"], pod_name, labels, self.owner(thing))
            self._report(name, phase="Starting", group=group, replicas=1)
        elif pod.status.phase == "Running" and phase != "Running":
            self._report(name, phase="Running", readyReplicas=1)
        elif pod.status.phase == "Succeeded":
            self._report(name, phase="Succeeded", completionTimestamp=now())
        elif pod.status.phase == "Failed":
            if thing["spec"]["preemptible"] and _code(pod) == 143:
                self._report(name, phase="Starting", group=group + 1)
            else:
                self._report(name, phase="Failed", reason="PodFailure", message=pod.metadata.name)

    def _report(self, name: str, **status: Any) -> None:
        self.objects.patch_namespaced_custom_object_status(*self.where, name, {"status": status})


def _code(pod: Any) -> int:
    ended = [each.state.terminated for each in pod.status.container_statuses or [] if each.state.terminated]
    return max((each.exit_code for each in ended), default=0)


def _completion(pod: Any) -> tuple[int, str, str, list[Object]]:
    """The code, phrase, diagnostics and containers of a task by its pod, by FrameworkController's default rules."""
    ended = [each for each in pod.status.container_statuses or [] if each.state.terminated]
    containers = [
        {"name": each.name, "code": each.state.terminated.exit_code, "reason": each.state.terminated.reason}
        for each in ended
    ]
    if pod.status.phase == "Succeeded":
        return 0, "Succeeded", "Pod succeeded", containers
    if pod.status.reason == "Evicted":
        return -1000, "PodEvicted", f"Pod failed: {pod.status.message}", containers
    if any(each["reason"] == "OOMKilled" for each in containers):
        return -1200, "ContainerDockerOOMKilled", "Pod failed: out of memory", containers
    code = max(each["code"] for each in containers)
    if code in (130, 131, 137, 143):
        return code, "ContainerSigReceived", "Pod failed: ended by a signal", containers
    return code, "ContainerUnrecognizedFailed", "Pod failed: PodPattern unmatched", containers
