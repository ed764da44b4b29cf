"""What states of Jobs and pods mean; those of newer servers than the one of the other tests, too."""

import pytest

from nasflow.config.services.cluster.kubernetes import KubernetesServiceConfig
from nasflow.errors import ServiceError
from nasflow.training_service.base import JobStatus
from nasflow.training_service.cluster.kubernetes import manifest, states

LOST, EXITED, PENDING, RUNNING = JobStatus.LOST, JobStatus.EXITED, JobStatus.PENDING, JobStatus.RUNNING


def condition(kind: str, reason: str, status: str = "True") -> dict:
    return {"conditions": [{"type": kind, "status": status, "reason": reason, "message": "why"}]}


def pod(phase: str, node: str | None = "n1", meta: dict | None = None, **status) -> dict:
    metadata = {"uid": "one", "creationTimestamp": "2026-11-23T20:00:00Z", **(meta or {})}
    return {"metadata": metadata, "spec": {"nodeName": node} if node else {}, "status": {"phase": phase, **status}}


def ended(code: int, reason: str) -> dict:
    return {"containerStatuses": [{"state": {"terminated": {"exitCode": code, "reason": reason, "message": "last"}}}]}


def beside_a_sidecar(code: int, reason: str) -> dict:
    (own,) = ended(code, reason)["containerStatuses"]
    return {"containerStatuses": [{"name": "istio-proxy", "state": {"running": {}}}, {"name": "job", **own}]}


def one_of_two(phase: str, uid: str = "two", **values) -> dict:
    meta = {"uid": uid, "annotations": {manifest.NODES: "2"}, **values.pop("meta", {})}
    return pod(phase, meta=meta, **values)


JOB: dict = {"metadata": {"name": "job"}, "status": {}}
JOB_OF_TWO: dict = {"metadata": {"name": "job", "annotations": {manifest.NODES: "2"}}, "status": {}}
BEING_DELETED = {"deletionTimestamp": "2026-11-23T20:00:00Z", "deletionGracePeriodSeconds": 30}
FAILED = {"metadata": {}, "status": condition("Failed", "BackoffLimitExceeded")}
OVERDUE = {"metadata": {}, "status": condition("Failed", "DeadlineExceeded")}
CASES = {
    "preempted": (JOB, [pod("Failed", **condition("DisruptionTarget", "PreemptionByScheduler"))], LOST, "preempted by"),
    "drained": (JOB, [pod("Failed", **condition("DisruptionTarget", "EvictionByEvictionAPI"))], LOST, "drained: why"),
    "unknown disruption": (JOB, [pod("Failed", **condition("DisruptionTarget", "New"))], LOST, "on n1: New: why"),
    "off": (JOB, [pod("Failed", reason="Terminated", message="m", **ended(137, "Error"))], LOST, "was shut down: m"),
    "refused by its node": (JOB, [pod("Failed", reason="OutOfcpu", message="m")], LOST, "on n1: OutOfcpu: m"),
    "no word": (JOB, [pod("Failed", node=None)], LOST, "its pod failed"),
    "out of memory": (FAILED, [pod("Failed", **ended(137, "OOMKilled"))], EXITED, "ran out of memory"),
    "exit": (FAILED, [pod("Failed", **ended(3, "Error"))], EXITED, "on n1 with exit code 3: Error: last"),
    "done": (JOB, [pod("Succeeded")], EXITED, "exit code 0"),
    "overdue": (OVERDUE, [pod("Failed", **ended(137, "Error"))], LOST, "training_service.time_limit"),
    "overdue by itself": (JOB, [pod("Failed", reason="DeadlineExceeded")], LOST, "training_service.time_limit"),
    "overdue and still there": (OVERDUE, [pod("Running", meta=BEING_DELETED)], RUNNING, "being deleted"),
    "failed without pod": (FAILED, [], LOST, "its pod is gone: BackoffLimitExceeded: why"),
    "done without pod": ({"metadata": {}, "status": condition("Complete", "")}, [], EXITED, "is complete"),
    "no pod yet": (JOB, [], PENDING, "no pod yet"),
    "done beside a sidecar": (JOB, [pod("Running", **beside_a_sidecar(0, "Completed"))], EXITED, "exit code 0"),
    "out of memory beside a sidecar": (
        JOB,
        [pod("Running", **beside_a_sidecar(137, "OOMKilled"))],
        EXITED,
        "ran out of memory",
    ),
    "deleted beside a sidecar": (
        JOB,
        [pod("Running", meta=BEING_DELETED, **beside_a_sidecar(143, "Error"))],
        RUNNING,
        "being deleted",
    ),
    "no Job": (None, [pod("Running")], RUNNING, ""),
    "lost and replaced": (
        JOB,
        [pod("Running", meta=BEING_DELETED | {"uid": "old"}), pod("Pending")],
        LOST,
        "node n1 no",
    ),
    "one of two failed": (
        JOB,
        [one_of_two("Running"), one_of_two("Failed", **ended(1, "Error"))],
        EXITED,
        "with exit code 1: Error: last",
    ),
    "one of two is out of memory": (
        FAILED,
        [one_of_two("Running", meta=BEING_DELETED), one_of_two("Failed", **ended(137, "OOMKilled"))],
        EXITED,
        "ran out of memory",
    ),
    "one of two failed beside a sidecar": (
        JOB,
        [one_of_two("Running"), one_of_two("Running", "old", **beside_a_sidecar(1, "Error"))],
        EXITED,
        "with exit code 1: Error: last",
    ),
    "one of two is lost": (
        JOB,
        [one_of_two("Running"), one_of_two("Running", "old", meta=BEING_DELETED)],
        LOST,
        "no l",
    ),
    "one of two waits": (
        JOB,
        [
            one_of_two("Running"),
            one_of_two("Pending", node=None, **condition("PodScheduled", "Unschedulable", "False")),
        ],
        PENDING,
        "no node can take its pod: why",
    ),
    "one of two has ended": (JOB, [one_of_two("Succeeded"), one_of_two("Running")], RUNNING, ""),
    "two": (JOB, [one_of_two("Running"), one_of_two("Running")], RUNNING, ""),
    "one of two is missing": (JOB_OF_TWO, [one_of_two("Running")], PENDING, "has 1 of 2 pods yet"),
    "one of two failed and is gone": (JOB_OF_TWO, [one_of_two("Failed", **ended(1, "Error"))], EXITED, "exit code 1"),
    "both are missing": (JOB_OF_TWO, [], PENDING, "no pod yet"),
    "both have ended": (JOB, [one_of_two("Succeeded"), one_of_two("Succeeded")], EXITED, "exit code 0"),
    "image is pulled": (
        JOB,
        [pod("Pending", containerStatuses=[{"state": {"waiting": {"reason": "ContainerCreating"}}}])],
        PENDING,
        "waits: ContainerCreating",
    ),
}


@pytest.mark.parametrize(("job", "pods", "status", "reason"), CASES.values(), ids=CASES)
def test_states(job, pods, status, reason):

    def lasting(state):
        return 1000.0 if state.startswith("old ") else 0.0

    seen = states.seen(job, pods, False, lasting, states.fate_of, container="job")
    assert seen.status is status
    assert reason in seen.reason
    assert seen.out_of_memory == ("ran out of memory" in reason)
    assert seen.overtime == ("time_limit" in reason)


def test_a_new_pod_of_a_run_that_has_begun_means_that_the_first_was_deleted():
    seen = states.seen(JOB, [pod("Pending", node=None)], True, lambda state: 0.0, states.fate_of)
    assert (seen.status, seen.reason) == (LOST, states.POD_DELETED)


def test_a_pod_that_waits_beside_one_that_has_begun_was_not_deleted():
    pods = [one_of_two("Running"), one_of_two("Pending", node=None)]
    assert states.seen(JOB, pods, True, lambda state: 0.0, states.fate_of).status is PENDING


def test_a_state_lasts_while_each_look_sees_it(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(states.time, "monotonic", lambda: now[0])
    clock = states.Clock()
    found = []
    for seconds, sees in ((0, True), (5, True), (5, True), (5, False), (5, True)):
        now[0] += seconds
        clock.look()
        if sees:
            found.append(clock("it waits"))
    assert found == [0.0, 5.0, 10.0, 0.0]


def test_what_is_merged_into_a_pod_template():
    ours = {"labels": {"a": 1}, "list": [1], "named": [{"name": "job", "image": "x", "env": [{"name": "A"}]}]}
    theirs = {"labels": {"b": 2}, "list": [2], "named": [{"name": "side"}, {"name": "job", "env": [{"name": "B"}]}]}
    merged = manifest.merged(ours, theirs)
    assert merged["labels"] == {"a": 1, "b": 2}
    assert merged["list"] == [2]
    assert merged["named"] == [{"name": "job", "image": "x", "env": [{"name": "A"}, {"name": "B"}]}, {"name": "side"}]


def test_names_of_jobs_are_what_kubernetes_takes():
    assert manifest.job_name("nasflow-0123456789-job-1-89abcdef") == "nasflow-0123456789-job-1-89abcdef"
    names = {manifest.job_name(f"nasflow-0123456789-{job}-89abcdef") for job in ("Job", "job-" + "x" * 60, "JOB")}
    assert len(names) == 3
    for name in names:
        assert name.startswith("nasflow-0123456789-")
        assert name.endswith("-89abcdef")
        assert len(name) <= 63
        assert name == name.lower()


def template_of(config: KubernetesServiceConfig, environment: dict) -> dict:
    meta = manifest.metadata(config, "nasflow-1-", "nasflow-1-a-b", "nasflow-1-a-b")
    return manifest.template(
        config, "nasflow-1-", meta, ["a"], "log", container="job", environment=environment, with_secret=False
    )


def test_labels_of_nasflow_can_not_be_given_away():
    config = KubernetesServiceConfig(image="any", labels={"team": "vision"})
    meta = manifest.metadata(config, "nasflow-1-", "nasflow-1-a-b", "nasflow-1-a-b")
    job = manifest.job(config, meta, template_of(config, {"A": "$(B)"}))
    template = job["spec"]["template"]
    assert template["metadata"]["labels"] == job["metadata"]["labels"]
    assert job["metadata"]["labels"]["team"] == "vision"
    assert template["spec"]["containers"][0]["env"] == [{"name": "A", "value": "$$(B)"}]


def asks_for(name: str, count: object = 1, **values: object) -> dict:
    return {"spec": {"containers": [{"name": "job", "resources": {"limits": {name: count}}, **values}]}}


@pytest.mark.parametrize("name", ["nvidia.com/gpu", "nvidia.com/mig-1g.10gb", "example.com/card"])
def test_gpus_of_a_pod_template_that_jobs_would_not_see(name):
    config = KubernetesServiceConfig(image="any", gpu_resource="example.com/card", pod_template=asks_for(name))
    text = rf"^training_service\.gpus_per_job: .* pod_template asks for {name}, .*; set gpus_per_job, and gpu_resource"
    with pytest.raises(ServiceError, match=text):
        template_of(config, {"CUDA_VISIBLE_DEVICES": ""})


@pytest.mark.parametrize(
    "template",
    [
        asks_for("cpu"),
        asks_for("nvidia.com/gpu", 0),
        asks_for("nvidia.com/gpu", env=[{"name": "CUDA_VISIBLE_DEVICES", "value": "0"}]),
        {"spec": {"containers": [{"name": "job", "resources": {"limits": ["nvidia.com/gpu"]}}]}},
        {"spec": {"containers": [{"name": "job", "resources": "nvidia.com/gpu", "env": None}]}},
    ],
    ids=["cpu", "none", "seen", "a list", "a text"],
)
def test_pod_templates_that_hide_no_gpu(template):
    template_of(KubernetesServiceConfig(image="any", pod_template=template), {"CUDA_VISIBLE_DEVICES": ""})
