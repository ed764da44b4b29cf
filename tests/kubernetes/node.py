"""A stand-in for a node's agent: it runs the first container of each pod that the scheduler gives it as a process.

Every tick it reads all pods of its node, and does what is missing: starts, reports, ends. So nothing is forgotten when
a report fails, or when a pod is deleted while its end is being reported. Not done: images (but whether there is one),
volumes, further containers, restarts.
"""

import base64
import json
import os
import re
import signal
import subprocess
import threading
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
from kubernetes import client

IMAGE = "nasflow-test"
_TICK = 0.1  # seconds
_BEAT = 2.0
_REFERENCE = re.compile(r"\$\$|\$\(([A-Za-z_][\w.-]*)\)")
_UNITS = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30}
Object = dict[str, Any]


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass
class Container:
    """The process of a pod. `end` is its state as a kubelet reports it."""

    process: subprocess.Popen[bytes]
    log: Path
    memory: int | None
    began: str = field(default_factory=now)
    told: float | None = None  # when it was sent SIGTERM
    end: Object | None = None
    evicted: str = ""


class Node:
    """The node. `answers = False` plays one that is lost: it does nothing more, but its processes run on."""

    def __init__(self, api: client.ApiClient, name: str, folder: Path, gpus: int = 2):
        self.name, self._folder, self._gpus = name, folder, gpus
        self._api = client.CoreV1Api(api)
        self._pods: dict[str, Container] = {}
        self._known: dict[tuple[str, str], Any] = {}  # pods, by uid and version
        self._lock = threading.RLock()
        self._stop = threading.Event()
        self._beaten = float("-inf")
        self._since = now()
        self.answers = True
        self._thread = threading.Thread(target=self._work, daemon=True)

    def start(self) -> None:
        self._api.create_node({"metadata": {"name": self.name, "labels": {"kubernetes.io/hostname": self.name}}})
        self._beat()
        self._api.patch_node(self.name, {"spec": {"taints": []}})
        self._thread.start()

    def stop(self) -> None:
        """End its processes, and forget the node and its pods."""
        self._stop.set()
        self._thread.join()
        for container in self._pods.values():
            _kill_all(container.process.pid)
            container.process.wait()
        for pod in self._mine():
            self._remove(pod)
        self._api.delete_node(self.name)

    def evict(self, pod: str, message: str) -> None:
        """End a pod as a kubelet does that is short of something."""
        with self._lock:
            container = self._pods[self._api.read_namespaced_pod(pod, "default").metadata.uid]
            container.evicted = message
            container.told = container.told or time.monotonic()
            container.process.terminate()

    def running(self) -> list[Any]:
        """Its pods whose processes run."""
        with self._lock:
            alive = {uid for uid, container in self._pods.items() if container.end is None}
        return [pod for pod in self._mine() if pod.metadata.uid in alive] if alive else []

    def kill(self, pod: Any) -> None:
        """SIGKILL of all processes of a pod."""
        with self._lock:
            _kill_all(self._pods[pod.metadata.uid].process.pid)

    def logs(self) -> bytes:
        """Everything that containers have printed to their own logs."""
        return b"".join(file.read_bytes() for file in self._folder.glob("*.log"))

    def _work(self) -> None:
        while not self._stop.wait(_TICK):
            if not self.answers:
                continue
            try:
                with self._lock:
                    if time.monotonic() - self._beaten > _BEAT:
                        self._beat()
                    for pod in self._mine():
                        self._tend(pod)
            except Exception as error:  # whatever it was, the next tick tries again
                (self._folder / "agent.err").open("a").write(f"{type(error).__name__}: {error}\n")

    def _beat(self) -> None:
        resources = {"cpu": "16", "memory": "8Gi", "pods": "50", "nvidia.com/gpu": str(self._gpus)}
        ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "lastTransitionTime": self._since}
        conditions = [{**ready, "lastHeartbeatTime": now()}]
        status = {"capacity": resources, "allocatable": resources, "conditions": conditions}
        self._api.patch_node_status(self.name, {"status": status})
        self._beaten = time.monotonic()

    def _mine(self) -> list[Any]:
        """Its pods. One that has not changed is not parsed again: that takes milliseconds."""
        here = f"spec.nodeName={self.name}"
        answer = self._api.list_pod_for_all_namespaces(field_selector=here, _preload_content=False)
        found: dict[tuple[str, str], Any] = {}
        for item in json.loads(answer.data)["items"]:
            version = item["metadata"]["uid"], item["metadata"]["resourceVersion"]
            found[version] = self._known.get(version) or self._parsed(item)
        self._known = found
        return list(found.values())

    def _parsed(self, pod: Object) -> Any:
        return self._api.api_client.deserialize(SimpleNamespace(data=json.dumps(pod)), "V1Pod")

    def _tend(self, pod: Any) -> None:
        container = self._pods.get(pod.metadata.uid)
        if container is None:
            if pod.metadata.deletion_timestamp:
                self._remove(pod)
            elif pod.status.phase == "Pending":
                self._begin(pod)
            return
        if pod.metadata.deletion_timestamp and container.told is None:
            container.told = time.monotonic()
            container.process.terminate()
        grace = pod.metadata.deletion_grace_period_seconds or pod.spec.termination_grace_period_seconds
        if container.told is not None and time.monotonic() - container.told > grace:
            _kill_all(container.process.pid)
        container.end = container.end or _end(container)
        if container.end is None:
            if pod.status.phase != "Running":
                self._report(pod, "Running", {"running": {"startedAt": container.began}})
        elif pod.status.phase not in ("Succeeded", "Failed"):
            phase = "Failed" if container.end["exitCode"] or container.evicted else "Succeeded"
            why = {"reason": "Evicted", "message": container.evicted} if container.evicted else {}
            self._report(pod, phase, {"terminated": container.end}, **why)
        elif pod.metadata.deletion_timestamp:
            self._remove(pod)

    def _begin(self, pod: Any) -> None:
        (first, *_) = pod.spec.containers
        if first.image != IMAGE:
            waits = {"reason": "ErrImagePull", "message": f"pull access denied for {first.image}"}
            self._report(pod, "Pending", {"waiting": waits})
            return
        try:
            environment = self._environment(pod)
        except client.ApiException as error:
            waits = {"reason": "CreateContainerConfigError", "message": f"secret not found ({error.status})"}
            self._report(pod, "Pending", {"waiting": waits})
            return
        command = [_expanded(word, environment) for word in [*first.command, *(first.args or [])]]
        log = self._folder / f"{pod.metadata.name}-{pod.metadata.uid}.log"
        with log.open("ab") as output:
            process = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd="/",
                start_new_session=True,
            )
        memory = (first.resources.limits or {}).get("memory")
        limit = int(memory[:-2]) * _UNITS[memory[-2:]] if memory else None
        self._pods[pod.metadata.uid] = Container(process, log, limit)

    def _environment(self, pod: Any) -> dict[str, str]:
        """As of a container: nothing of this process's but what finds programs."""
        environment = {"PATH": os.environ["PATH"], "HOME": "/", "HOSTNAME": pod.metadata.name}
        first = pod.spec.containers[0]
        for source in first.env_from or []:
            secret = self._api.read_namespaced_secret(source.secret_ref.name, pod.metadata.namespace)
            environment |= {key: _decoded(value) for key, value in (secret.data or {}).items()}
        for variable in first.env or []:
            environment[variable.name] = _expanded(variable.value or "", environment)
        return environment

    def _report(self, pod: Any, phase: str, state: Object, **why: str) -> None:
        first = pod.spec.containers[0]
        container = {"name": first.name, "image": first.image, "imageID": "", "restartCount": 0, "state": state}
        status = {
            "phase": phase,
            "startTime": now(),
            "containerStatuses": [{**container, "ready": phase == "Running"}],
            **why,
        }
        self._api.patch_namespaced_pod_status(pod.metadata.name, pod.metadata.namespace, {"status": status})

    def _remove(self, pod: Any) -> None:
        try:
            now = {"gracePeriodSeconds": 0, "preconditions": {"uid": pod.metadata.uid}}
            self._api.delete_namespaced_pod(pod.metadata.name, pod.metadata.namespace, body=now)
        except client.ApiException as error:
            if error.status not in (404, 409):
                raise


def _end(container: Container) -> Object | None:
    """How a container's process ended; None while it runs. One that has more memory than its limit is killed."""
    process = container.process
    out_of_memory = container.memory is not None and _memory(process.pid) > container.memory
    if out_of_memory:
        _kill_all(process.pid)
        process.wait()
    code = process.poll()
    if code is None:
        return None
    code = 128 - code if code < 0 else code
    end: Object = {"exitCode": code, "startedAt": container.began, "finishedAt": now()}
    if code:
        end["message"] = container.log.read_bytes()[-2048:].decode(errors="replace")
    return {**end, "reason": "OOMKilled" if out_of_memory else "Error" if code else "Completed"}


def _family(pid: int) -> list[psutil.Process]:
    try:
        first = psutil.Process(pid)
        return [first, *first.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def _memory(pid: int) -> int:
    total = 0
    for process in _family(pid):
        try:
            total += process.memory_info().rss - process.memory_info().shared
        except psutil.NoSuchProcess:
            continue
    return total


def _kill_all(pid: int) -> None:
    """As the end of a container: nothing that it started lives on."""
    for process in _family(pid):
        try:
            process.send_signal(signal.SIGKILL)
        except psutil.NoSuchProcess:
            continue


def _expanded(text: str, environment: dict[str, str]) -> str:
    """What Kubernetes makes of `$(NAME)` and `$$` in commands and variables."""
    return _REFERENCE.sub(lambda found: environment.get(found[1], found[0]) if found[1] else "$", text)


def _decoded(value: str) -> str:
    return base64.b64decode(value).decode()
