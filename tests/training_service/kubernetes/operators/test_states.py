"""What the states of operators' objects mean, and what is submitted."""

import pytest

from nasflow.config.services.cluster.operators import (
    AdaptdlServiceConfig,
    FrameworkControllerServiceConfig,
    KubeflowServiceConfig,
)
from nasflow.training_service.base import JobStatus

pytest.importorskip("kubernetes", reason="needs the Kubernetes client: install nasflow[kubernetes]")

from nasflow.training_service.cluster.kubernetes import manifest, states
from nasflow.training_service.cluster.kubernetes.adaptdl import AdaptdlService
from nasflow.training_service.cluster.kubernetes.frameworkcontroller import FrameworkControllerService, framework_fate
from nasflow.training_service.cluster.kubernetes.kubeflow import PyTorchJobService, TrainJobService
from nasflow.training_service.cluster.runs import Run

LOST, EXITED, PENDING, RUNNING = JobStatus.LOST, JobStatus.EXITED, JobStatus.PENDING, JobStatus.RUNNING


def pytorch_job(**conditions: str) -> dict:
    made = [
        {"type": kind, "status": status, "reason": f"PyTorchJob{kind}", "message": "why"}
        for kind, status in conditions.items()
    ]
    return {"kind": "PyTorchJob", "metadata": {"name": "job"}, "status": {"conditions": made}}


@pytest.mark.parametrize(
    ("job", "status", "reason"),
    [
        (pytorch_job(), PENDING, "the PyTorchJob has no pod yet"),
        (pytorch_job(Created="True", Running="True"), PENDING, "the PyTorchJob has no pod yet"),
        (pytorch_job(Created="True", Running="False", Succeeded="True"), EXITED, "the PyTorchJob is complete"),
        (pytorch_job(Succeeded="True", Running="False"), EXITED, "the PyTorchJob is complete"),
        (pytorch_job(Failed="True", Running="False"), LOST, "ended the PyTorchJob, and its pod is gone: PyTorchJobF"),
        (pytorch_job(Failed="False", Succeeded="False", Restarting="True"), PENDING, "no pod yet"),
    ],
)
def test_the_condition_that_is_true_counts_wherever_it_stands(tmp_path, job, status, reason):
    service = PyTorchJobService(KubeflowServiceConfig(image="any"), tmp_path)
    seen = states.seen(job, [], True, lambda state: 0.0, service._fate)
    assert (seen.status, reason in seen.reason) == (status, True)


def framework(code: int, phrase: str = "Phrase", state: str = "Completed", reason: str = "Error") -> dict:
    end = {"code": code, "phrase": phrase, "diagnostics": "why", "type": {"name": "Failed" if code else "Succeeded"}}
    pod = {"containers": [{"name": "job", "code": 137, "reason": reason}]}
    tasks = [{"index": 0, "attemptStatus": {"completionStatus": {**end, "pod": pod}}}]
    attempt = {"completionStatus": end, "taskRoleStatuses": [{"name": "job", "taskStatuses": tasks}]}
    return {"metadata": {"name": "f"}, "status": {"state": state, "attemptStatus": attempt}}


@pytest.mark.parametrize(
    ("thing", "status", "reason"),
    [
        (framework(0), EXITED, "exit code 0"),
        (framework(3), EXITED, "exit code 3: Phrase: why"),
        (framework(-1200), EXITED, "ran out of memory"),
        (framework(137, reason="OOMKilled"), EXITED, "ran out of memory"),
        (framework(-1203), EXITED, "can't be started"),
        (framework(-210), LOST, "stopped by another program"),
        (framework(-220), LOST, "FrameworkController ended the Framework: Phrase: why"),
        (framework(-1004), LOST, "training_service.time_limit"),
        (framework(-100), LOST, "Phrase"),
        (framework(-1000), LOST, "Phrase"),
        (framework(-1001), LOST, "Phrase"),
        (framework(-1003), LOST, "Phrase"),
    ],
)
def test_completion_codes(thing, status, reason):
    seen = framework_fate(thing, True)
    assert (seen.status, reason in seen.reason) == (status, True)
    assert seen.out_of_memory == ("out of memory" in reason)
    assert seen.overtime == ("time_limit" in reason)


@pytest.mark.parametrize("thing", [{}, {"status": None}, framework(0, state="AttemptDeletionPending")])
def test_a_framework_that_is_not_completed_has_not_ended(thing):
    assert framework_fate(thing, True) is None


@pytest.mark.parametrize(
    ("service", "config"),
    [
        (PyTorchJobService, KubeflowServiceConfig),
        (FrameworkControllerService, FrameworkControllerServiceConfig),
    ],
)
def test_the_time_limit_is_the_pods(tmp_path, service, config):
    def pod(**options) -> dict:
        made = service(config(image="any", **options), tmp_path)._job(Run(tmp_path, "job", "0123abcd"))["spec"]
        roles = made.get("taskRoles") or [{"task": {"pod": made["pytorchReplicaSpecs"]["Master"]["template"]}}]
        return roles[0]["task"]["pod"]["spec"]

    assert "activeDeadlineSeconds" not in pod()
    assert pod(time_limit="2m")["activeDeadlineSeconds"] == 120
    mine = {"spec": {"activeDeadlineSeconds": 5}}
    assert pod(time_limit="2m", pod_template=mine)["activeDeadlineSeconds"] == 5


def test_runs_of_the_same_settings_share_a_runtime(tmp_path):
    def made(job_id: str, **options) -> tuple[dict, dict]:
        service = TrainJobService(KubeflowServiceConfig(image="any", job_kind="TrainJob", **options), tmp_path)
        run = Run(tmp_path, job_id, "0123abcd")
        return service._job(run), service._runtime(service._template(run))

    (one, runtime), (two, same), (_, other) = made("one"), made("two"), made("one", time_limit="2m")
    assert runtime == same
    assert one["spec"]["runtimeRef"] == two["spec"]["runtimeRef"]
    assert one["spec"]["runtimeRef"]["name"] == runtime["metadata"]["name"] != other["metadata"]["name"]
    assert one["spec"]["trainer"]["command"] != two["spec"]["trainer"]["command"]
    (node,) = other["spec"]["template"]["spec"]["replicatedJobs"]
    assert node["template"]["spec"]["backoffLimit"] == 0
    assert node["template"]["spec"]["template"]["spec"]["activeDeadlineSeconds"] == 120


@pytest.mark.parametrize(("condition", "status"), [("Complete", EXITED), ("Failed", LOST), ("Suspended", PENDING)])
def test_train_jobs(tmp_path, condition, status):
    service = TrainJobService(KubeflowServiceConfig(image="any", job_kind="TrainJob"), tmp_path)
    job = {"kind": "TrainJob", "status": {"conditions": [{"type": condition, "status": "True", "reason": "Why"}]}}
    assert states.seen(job, [], True, lambda state: 0.0, service._fate).status is status


@pytest.mark.parametrize(
    ("phase", "status", "reason"),
    [
        (None, PENDING, "the AdaptDLJob has no pod yet"),
        ("Pending", PENDING, "no pod yet"),
        ("Starting", PENDING, "no pod yet"),
        ("Stopping", PENDING, "no pod yet"),
        ("Succeeded", EXITED, "is complete"),
        ("Failed", LOST, "its pod is gone: PodFailure: why"),
    ],
)
def test_phases_of_adaptdl(tmp_path, phase, status, reason):
    service = AdaptdlService(AdaptdlServiceConfig(image="any", preemptible=False), tmp_path)
    job = {"kind": "AdaptDLJob", "status": {"phase": phase, "reason": "PodFailure", "message": "why"}}
    seen = states.seen(job, [], True, lambda state: 0.0, service._fate)
    assert (seen.status, reason in seen.reason) == (status, True)
    assert service._job(Run(tmp_path, "job", "0123abcd"))["spec"]["preemptible"] is False


def test_names_are_what_operators_take(tmp_path):
    kubeflow = PyTorchJobService(KubeflowServiceConfig(image="any"), tmp_path)
    assert kubeflow._name("nasflow-0123456789-job-1-89abcdef") == "nasflow-0123456789-job-1-89abcdef"
    assert len(kubeflow._name(f"nasflow-0123456789-{'x' * 30}-89abcdef")) == 44
    framework = FrameworkControllerService(FrameworkControllerServiceConfig(image="any"), tmp_path)
    names = {framework._name(f"nasflow-0123456789-{job}-89abcdef") for job in ("a", "A", "b")}
    assert len(names) == 3
    assert all(name.isalnum() and name.islower() and len(name) <= manifest.LONGEST for name in names)
