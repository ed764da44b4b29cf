"""The custom resources of the operators that nasflow knows, as far as the API server checks them.

Names, versions, subresources and the types of what nasflow writes are those of the operators' own definitions; pod
templates and whatever else is large there is open here.
"""

import threading
import time
from typing import Any

from kubernetes import client

OPEN: dict[str, Any] = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
COUNT: dict[str, Any] = {"type": "integer", "format": "int32"}
TEXT: dict[str, Any] = {"type": "string"}


def thing(*required: str, **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, **({"required": list(required)} if required else {})}


def items(of: Any) -> dict[str, Any]:
    return {"type": "array", "items": of}


def definition(kind: str, group: str, version: str, plural: str, subresource: bool, **schema: Any) -> dict[str, Any]:
    served = {"name": version, "served": True, "storage": True, "schema": {"openAPIV3Schema": thing(**schema)}}
    names = {"kind": kind, "listKind": f"{kind}List", "plural": plural, "singular": kind.lower()}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {
            "group": group,
            "names": names,
            "scope": "Namespaced",
            "versions": [{**served, "subresources": {"status": {}}} if subresource else served],
        },
    }


_TIME = {"type": "string", "format": "date-time"}
_CONDITION = thing(
    *("status", "type"),
    **{"type": TEXT, "status": TEXT, "reason": TEXT, "message": TEXT, "lastTransitionTime": _TIME},
    lastUpdateTime=_TIME,
)
_PYTORCH = definition(
    *("PyTorchJob", "kubeflow.org", "v1", "pytorchjobs", True),
    spec=thing(
        "pytorchReplicaSpecs",
        pytorchReplicaSpecs={
            "type": "object",
            "additionalProperties": thing(replicas=COUNT, restartPolicy=TEXT, template=OPEN),
        },
        runPolicy=thing(
            activeDeadlineSeconds={"type": "integer", "format": "int64"},
            backoffLimit=COUNT,
            cleanPodPolicy=TEXT,
            suspend={"type": "boolean"},
            ttlSecondsAfterFinished=COUNT,
        ),
    ),
    status=thing(conditions=items(_CONDITION), replicaStatuses=OPEN, startTime=_TIME, completionTime=_TIME),
)
_PLAIN_NAME = {"type": "string", "pattern": "^[a-z0-9]{1,63}$"}
_RETRY = thing(fancyRetryPolicy={"type": "boolean"}, maxRetryCount={"type": "integer", "minimum": -2})
_FRAMEWORK = definition(
    *("Framework", "frameworkcontroller.microsoft.com", "v1", "frameworks", False),
    metadata=thing(name=_PLAIN_NAME),
    spec=thing(
        description={"type": "string", "nullable": True},
        executionType={"type": "string", "enum": ["Create", "Start", "Stop"]},
        retryPolicy=_RETRY,
        taskRoles=items(
            thing(
                name=_PLAIN_NAME,
                taskNumber={"type": "integer", "minimum": 0, "maximum": 10000},
                frameworkAttemptCompletionPolicy=thing(
                    minFailedTaskCount={"type": "integer", "minimum": -1},
                    minSucceededTaskCount={"type": "integer", "minimum": -1},
                ),
                task=thing(
                    pod=OPEN,
                    podGracefulDeletionTimeoutSec={"type": "integer", "nullable": True},
                    retryPolicy=_RETRY,
                ),
            )
        ),
    ),
    status={**OPEN, "nullable": True},
)
_TRAIN = definition(
    *("TrainJob", "trainer.kubeflow.org", "v1alpha1", "trainjobs", True),
    spec=thing(
        "runtimeRef",
        runtimeRef=thing("name", name=TEXT, apiGroup=TEXT, kind=TEXT),
        trainer=thing(
            image=TEXT, command=items(TEXT), args=items(TEXT), env=items(OPEN), numNodes=COUNT, resourcesPerNode=OPEN
        ),
        suspend={"type": "boolean"},
    ),
    status=thing(conditions=items(_CONDITION), jobsStatus=items(OPEN)),
)
_RUNTIME = definition(
    *("TrainingRuntime", "trainer.kubeflow.org", "v1alpha1", "trainingruntimes", False),
    spec=thing(
        "template",
        mlPolicy=thing(numNodes=COUNT),
        template=thing(metadata=OPEN, spec=thing(replicatedJobs=items(thing("name", name=TEXT, template=OPEN)))),
    ),
)
_ADAPTDL = definition(
    *("AdaptDLJob", "adaptdl.petuum.com", "v1", "adaptdljobs", True),
    metadata=thing(name={"type": "string", "maxLength": 63}),
    spec=thing(
        "template",
        maxReplicas={"type": "integer", "minimum": 1},
        minReplicas={"type": "integer", "minimum": 0},
        preemptible={"type": "boolean"},
        template=OPEN,
    ),
    status=OPEN,
)
CRDS = {crd["spec"]["names"]["kind"]: crd for crd in (_PYTORCH, _FRAMEWORK, _TRAIN, _RUNTIME, _ADAPTDL)}


def install(api: client.ApiClient) -> None:
    """Create all definitions, and wait until objects are served and the garbage collector deletes what they own."""
    for crd in CRDS.values():
        client.ApiextensionsV1Api(api).create_custom_resource_definition(crd)
    objects, core = client.CustomObjectsApi(api), client.CoreV1Api(api)
    for kind, crd in CRDS.items():
        spec = crd["spec"]
        where = (spec["group"], spec["versions"][0]["name"], "default", spec["names"]["plural"])
        name = f"first{kind.lower()}"
        needs = spec["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"].get("required", [])
        body = {
            "apiVersion": f"{where[0]}/{where[1]}",
            "kind": kind,
            "metadata": {"name": name},
            "spec": {key: {"name": "none"} if key == "runtimeRef" else {} for key in needs},
        }
        made = _until(lambda at=where, thing=body: objects.create_namespaced_custom_object(*at, thing))
        owner = {"apiVersion": body["apiVersion"], "kind": kind, "name": name, "uid": made["metadata"]["uid"]}
        core.create_namespaced_config_map("default", {"metadata": {"name": name, "ownerReferences": [owner]}})
        objects.delete_namespaced_custom_object(*where, name)
    for kind in CRDS:
        _until(lambda of=kind: _gone(core, f"first{of.lower()}"))


def _gone(core: client.CoreV1Api, name: str) -> bool:
    left = core.list_namespaced_config_map("default", field_selector=f"metadata.name={name}").items
    return not left


def _until(made: Any) -> Any:
    """What a function returns, once that is true and no error of the server's."""
    end, again = time.monotonic() + 120, threading.Event()
    while True:
        try:
            if found := made():
                return found
        except client.ApiException:
            if time.monotonic() > end:
                raise
        if time.monotonic() > end:
            raise RuntimeError("Kubernetes does not serve the custom resource")
        again.wait(0.2)
