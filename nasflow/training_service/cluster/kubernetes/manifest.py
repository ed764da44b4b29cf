"""The Kubernetes objects of a study: a Job for each run, and the Secret with the variables that jobs get."""

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from nasflow.config.services.cluster.kubernetes import KubernetesServiceConfig, PodsConfig
from nasflow.errors import ServiceError
from nasflow.training_service.machine.job_process import GRACE, NOTICE

Object = dict[str, Any]

ROOT_LABEL = "nasflow/root"
"""Of Jobs, their pods and the Secret: the common prefix of the names of all runs of a root."""
NAME = "nasflow/run"
"""The annotation of a Job and its pods with the name of the run. The label of that name has the Job's name."""
NODES = "nasflow/nodes"
"""The annotation of pods with how many of them a run has, if several."""
LONGEST = 63
"""Characters of a label's value; the name of a Job becomes one."""
_PLAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
# $1 is the job's log; the rest is the command. Kubernetes keeps the end of what reaches its own log.
_TO_LOG = 'log=$1; shift; : >>"$log" || exit 1; exec "$@" >>"$log" 2>&1 </dev/null'


def job_name(run: str, longest: int = LONGEST) -> str:
    """Return the name of a run's Job: the run's own, if Kubernetes takes that and it is not too long."""
    if _PLAIN.fullmatch(run) and len(run) <= longest:
        return run
    prefix, token = run.split("-")[1], run.rpartition("-")[2]
    return f"nasflow-{prefix}-{hashlib.sha256(run.encode()).hexdigest()[:16]}-{token}"


def secret_name(prefix: str) -> str:
    """Return the name of a root's Secret."""
    return f"{prefix}environment"


def root_label(prefix: str) -> str:
    """Return the value of `ROOT_LABEL`."""
    return prefix.rstrip("-")


def secret(prefix: str, variables: Mapping[str, str]) -> Object:
    """Return the Secret of a root."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": secret_name(prefix), "labels": _labels(prefix)},
        "type": "Opaque",
        "stringData": dict(variables),
    }


def metadata(config: PodsConfig, prefix: str, run: str, name: str, nodes: int = 1) -> Object:
    """Return the metadata of the object with this name that is submitted for a run.

    Its pods, `nodes` of them, get its labels and annotations.
    """
    labels = {**config.labels, **_labels(prefix), NAME: name}
    several = {NODES: str(nodes)} if nodes > 1 else {}
    return {"name": name, "labels": labels, "annotations": {NAME: run, **several}}


def template(
    config: PodsConfig,
    prefix: str,
    meta: Object,
    command: Sequence[str],
    log: str,
    *,
    container: str,
    environment: Mapping[str, str],
    with_secret: bool,
) -> Object:
    """Return the pod template of a run.

    Args:
        config: the service's section.
        prefix: common to the names of all runs of the root.
        meta: the metadata of the object that is submitted.
        command: starts its program.
        log: the file to which its output is appended.
        container: the name of its container.
        environment: variables, none of them secret.
        with_secret: whether it gets the variables in the root's Secret.

    Raises:
        ServiceError: `pod_template` replaces what a job can't do without, or asks for GPUs that it would not see.
    """
    described = {"labels": meta["labels"], "annotations": meta["annotations"]}
    made = {"metadata": described, "spec": _pod(config, container)}
    first = made["spec"]["containers"][0]
    first["command"] = ["/bin/sh", "-c", *map(_literal, [_TO_LOG, "sh", log, *command])]
    first["args"] = []
    first["env"] = [{"name": key, "value": _literal(value)} for key, value in environment.items()]
    names = [*([secret_name(prefix)] if with_secret else []), *config.env_from_secrets]
    first["envFrom"] = [{"secretRef": {"name": each}} for each in names]
    both: Object = merged(made, config.pod_template)
    needed = {
        "metadata": described,
        "spec": {
            "restartPolicy": "Never",
            "containers": [{key: first[key] for key in ("name", "command", "args")}],
        },
    }
    if wrong := _wrong(needed, both, "training_service.pod_template"):
        raise ServiceError(wrong)
    _check_gpus(config, next(each for each in both["spec"]["containers"] if each["name"] == container))
    return both


def job(config: KubernetesServiceConfig, meta: Object, pod: Object, nodes: int = 1) -> Object:
    """Return the Job of a run with this metadata, and with so many pods of this template."""
    spec: Object = {
        **({"parallelism": nodes, "completions": nodes} if nodes > 1 else {}),
        "backoffLimit": 0,
        "ttlSecondsAfterFinished": config.ttl_seconds_after_finished,
        "template": pod,
    }
    if config.time_limit is not None:
        spec["activeDeadlineSeconds"] = max(1, round(config.time_limit))
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": meta, "spec": spec}


def with_deadline(config: PodsConfig, pod: Object) -> Object:
    """Return a pod template whose pods end after the time limit of jobs, if there is one and the template has none."""
    if config.time_limit is None:
        return pod
    limited: Object = merged({"spec": {"activeDeadlineSeconds": max(1, round(config.time_limit))}}, pod)
    return limited


def merged(ours: Any, theirs: Any) -> Any:
    """Return `ours` with `theirs` merged into it: maps by key, lists of named maps by name; else `theirs` replaces."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        both = {key: merged(ours[key], theirs[key]) for key in ours.keys() & theirs.keys()}
        return {**ours, **theirs, **both}
    if _named(ours) and _named(theirs):
        by_name = {item["name"]: item for item in ours}
        for item in theirs:
            by_name[item["name"]] = merged(by_name.get(item["name"], {}), item)
        return list(by_name.values())
    return theirs


def _wrong(needed: Any, found: Any, path: str) -> str:
    """Return what is wrong with the first value of `needed` that `found` has otherwise; empty if there is none."""
    if isinstance(needed, dict):
        if not isinstance(found, dict):
            return f"{path}: should be a mapping"
        parts = [(f"{path}.{key}", value, found.get(key)) for key, value in needed.items()]
    elif _named(needed):
        if not _named(found):
            return f"{path}: should be a list of mappings, each with a 'name'"
        by_name = {item["name"]: item for item in found}
        parts = [(f"{path}.{item['name']}", item, by_name[item["name"]]) for item in needed]
    else:
        return "" if needed == found else f"{path}: is nasflow's own; leave it out"
    return next(filter(None, (_wrong(value, other, place) for place, value, other in parts)), "")


def _pod(config: PodsConfig, name: str) -> Object:
    """Return the spec of a job's pod without its command and environment."""
    requests: Object = {"cpu": f"{config.cpus_per_job:g}"}
    limits: Object = {}
    if config.memory_gb is not None:
        requests["memory"] = limits["memory"] = f"{round(config.memory_gb * 1024)}Mi"
    if config.gpus_per_job:
        limits[config.gpu_resource] = str(config.gpus_per_job)
    container = {
        "name": name,
        "image": config.image,
        "resources": {"requests": requests, "limits": limits},
        "volumeMounts": config.volume_mounts,
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }
    pod: Object = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,  # jobs need nothing of the API server
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": round(NOTICE + 5 * GRACE),
        "containers": [container],
        "volumes": config.volumes,
        "tolerations": config.tolerations,
        "nodeSelector": config.node_selector,
        "imagePullSecrets": [{"name": name} for name in config.image_pull_secrets],
    }
    if config.service_account is not None:
        pod["serviceAccountName"] = config.service_account
    return pod


def _check_gpus(config: PodsConfig, container: Object) -> None:
    """Raise ServiceError if the job's container asks for GPUs but hides them from its program."""
    env: Any = container.get("env")
    resources = container.get("resources")
    limits = resources.get("limits") if isinstance(resources, dict) else None
    if not (_named(env) and {"name": "CUDA_VISIBLE_DEVICES", "value": ""} in env and isinstance(limits, dict)):
        return
    for name in (str(each) for each, count in limits.items() if str(count) != "0"):
        if name == config.gpu_resource or re.search(r"gpu|/mig-", name):
            raise ServiceError(
                f"training_service.gpus_per_job: it is 0, but pod_template asks for {name}, which jobs would not see; "
                "set gpus_per_job, and gpu_resource to that name"
            )


def _labels(prefix: str) -> dict[str, str]:
    return {"app.kubernetes.io/managed-by": "nasflow", ROOT_LABEL: root_label(prefix)}


def _literal(text: str) -> str:
    """Return a text such that Kubernetes, which replaces `$(NAME)` in commands and variables, leaves it as it is."""
    return text.replace("$", "$$")


def _named(items: Any) -> bool:
    if not isinstance(items, list) or not items:
        return False
    return all(isinstance(each, dict) and isinstance(each.get("name"), str) for each in items)
