"""How jobs end on Kubernetes, and why they wait, on a real API server, scheduler and Job controller."""

import json
import signal

import psutil
import pytest

from nasflow.attempt.verdict import judge
from nasflow.errors import ServiceError
from nasflow.study.records import FailureKind
from nasflow.system.process_id import process_id
from nasflow.testing.training_service import await_status, epochs, finish, numbers, script, until
from nasflow.training_service.base import JobStatus
from nasflow.training_service.cluster import base, long_waits
from nasflow.training_service.cluster.kubernetes import states
from nasflow.training_service.cluster.runs import name_prefix

pytest.importorskip("kubernetes", reason="needs the Kubernetes client: install nasflow[kubernetes]")

from tests.training_service.kubernetes.service import batch, core, make, pod_of, pods, reason, started

__all__ = ["batch", "core"]
# the first test to start may have to build Kubernetes
pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]
GONE = {"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 0}


def test_a_pod_that_no_node_can_take_waits_with_the_schedulers_reason(root, monkeypatch, caplog):
    monkeypatch.setattr(long_waits, "_LONG", 1.0)
    service = make(root, gpus_per_job=3)
    handle = service.submit(script("job"))
    text = reason(service, handle, "Insufficient nvidia.com/gpu")
    assert text.startswith("no node can take its pod: 0/1 nodes are available")
    until(lambda: service.status(handle) and "waits: no node can take its pod" in caplog.text, "warning")
    assert service.status(handle).status is JobStatus.PENDING
    assert sum("waits: no node" in record.message for record in caplog.records) == 1
    service.cancel(handle)


def test_a_pod_that_the_quota_forbids_waits_with_the_controllers_reason(root, core, monkeypatch):
    """Kubernetes takes the Job, and refuses its pod."""
    monkeypatch.setattr(states, "SAID_AFTER", 0.5)
    core.create_namespaced_resource_quota("default", {"metadata": {"name": "few"}, "spec": {"hard": {"pods": "0"}}})
    try:
        until(lambda: core.read_namespaced_resource_quota("few", "default").status.hard, "quota in force")
        service = make(root)
        handle = service.submit(script("job"))
        text = reason(service, handle, "exceeded quota: few")
        assert text.startswith("Kubernetes can't create its pod: FailedCreate: ")
        assert service.status(handle).status is JobStatus.PENDING
        service.cancel(handle)
    finally:
        core.delete_namespaced_resource_quota("few", "default")


def test_a_quota_of_jobs_is_waited_for(root, core, caplog):
    hard = {"count/jobs.batch": "0"}
    core.create_namespaced_resource_quota("default", {"metadata": {"name": "none"}, "spec": {"hard": hard}})
    try:
        until(lambda: core.read_namespaced_resource_quota("none", "default").status.hard, "quota in force")
        service = make(root)
        with pytest.raises(ServiceError, match=r"^training_service\.namespace: 'default' needs a larger quota.*none"):
            service.validate()
        handle = service.submit(script("job"))
        assert service.status(handle).status is JobStatus.PENDING
        assert "exceeded quota: none" in caplog.text
    finally:
        core.delete_namespaced_resource_quota("none", "default")
    assert finish(service, handle).exit_code == 0


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            {"image": "nowhere/none:1"},
            "its image can't be pulled; see training_service.image: ErrImagePull: pull access",
        ),
        ({"env_from_secrets": ["no-such"]}, "its container can't be started: CreateContainerConfigError: secret not"),
    ],
    ids=["image", "secret"],
)
def test_a_container_that_can_not_start_loses_the_job_after_a_while(root, monkeypatch, batch, options, text):
    monkeypatch.setattr(states, "SAID_AFTER", 2.0)
    service = make(root, **options)
    handle = service.submit(script("job"))
    assert reason(service, handle, "its ")
    assert service.status(handle).status is JobStatus.PENDING
    state = await_status(service, handle, JobStatus.LOST)
    assert text in state.reason
    verdict = judge(state, None)
    assert (verdict.failure, verdict.out_of_memory) == (FailureKind.INFRASTRUCTURE, False)
    until(lambda: not jobs(batch, root), "end of its Job")


def test_an_evicted_job_is_lost(root, server):
    service = make(root)
    handle = service.submit(script("job", ["epoch", 1], ["spawn", "daemon"], ["wait", "never"]))
    pids = until(lambda: numbers(service, "jobs/job/pids"), "daemon") + numbers(service, "jobs/job/runs")
    server.nodes[0].evict(pod_of(server, service, handle), "The node was low on resource: memory.")
    state = finish(service, handle)
    assert state.status is JobStatus.LOST
    assert state.reason == (
        "Kubernetes ended its pod on node-0: it was evicted by its node: The node was low on resource: memory."
    )
    assert not any(process_id(pid) for pid in pids)


def test_a_preempted_job_is_lost(root, server, core):
    from kubernetes import client

    classes = client.SchedulingV1Api(server.api)
    classes.create_priority_class({"metadata": {"name": "urgent"}, "value": 1000})
    service = make(root, gpus_per_job=2)
    handle = service.submit(script("job", ["wait", "never"]))
    pid = started(service, handle)
    urgent = {
        "name": "any",
        "image": "nasflow-test",
        "command": ["sleep", "60"],
        "resources": {"limits": {"nvidia.com/gpu": "2"}},
    }
    spec = {"priorityClassName": "urgent", "restartPolicy": "Never", "containers": [urgent]}
    core.create_namespaced_pod("default", {"metadata": {"name": "urgent"}, "spec": spec})
    try:
        state = finish(service, handle)
    finally:
        core.delete_namespaced_pod("urgent", "default", grace_period_seconds=0)
        classes.delete_priority_class("urgent")
    assert state.status is JobStatus.LOST
    assert "Preempted" in state.reason
    assert process_id(pid) is None


def test_a_job_whose_node_is_lost_is_lost(root, server, monkeypatch):
    """The node no longer reports; Kubernetes asks it to delete the pod, and it does not answer."""
    monkeypatch.setattr(states, "NODE_CONFIRMS_WITHIN", 2.0)
    node = server.node("node-1")
    lost = {"node_selector": {"kubernetes.io/hostname": "node-1"}, "tolerations": [GONE]}
    service = make(root, pod_template={"spec": {"terminationGracePeriodSeconds": 1}}, **lost)
    try:
        handle = service.submit(script("job", ["ignore", int(signal.SIGTERM)], ["wait", "never"]))
        pid = started(service, handle)
        node.answers = False
        state = finish(service, handle, seconds=90)
        assert (state.status, state.reason) == (JobStatus.LOST, "its node node-1 no longer answers")
        until(lambda: process_id(pid) is None, "end of the job, which sees that it was given up")
    finally:
        server.remove_node(node)


def test_a_job_that_reaches_its_time_limit_is_lost(root):
    service = make(root, time_limit=4)
    handle = service.submit(script("job", ["ignore", int(signal.SIGTERM)], ["spawn", "session"], ["wait", "never"]))
    pid = started(service, handle)
    state = finish(service, handle)
    assert state.status is JobStatus.LOST
    assert state.reason.startswith(
        "Kubernetes ended the Job: it reached its time limit; set training_service.time_limit"
    )
    assert not any(process_id(each) for each in [pid, *numbers(service, "jobs/job/pids")])


def test_a_container_without_memory_is_the_trials_failure(root):
    service = make(root, memory_gb=0.5)
    handle = service.submit(script("job", ["epoch", 1], ["hold", 700 * 2**20], ["wait", "never"]))
    state = finish(service, handle)
    assert (state.status, state.signal, state.oom_kills) == (JobStatus.EXITED, 9, 1)
    assert state.reason == "its container on node-0 ran out of memory; see training_service.memory_gb"
    assert judge(state, None).out_of_memory


def test_a_job_whose_program_is_killed_on_its_node_is_lost(root, monkeypatch):
    monkeypatch.setattr(base, "_LAST_WORD", 0.5)
    service = make(root)
    handle = service.submit(script("job", ["wait", "never"]))
    program = psutil.Process(started(service, handle)).parent()
    program.kill()
    state = await_status(service, handle, JobStatus.LOST)
    assert state.reason == "its container ended on node-0 with exit code 137: Error"


def test_jobs_that_can_not_begin_are_an_error_with_the_containers_last_words(root, monkeypatch):
    monkeypatch.setattr(base, "_LAST_WORD", 0.1)
    service = make(root, python="/no/such/python")
    with pytest.raises(ServiceError, match=r"3 jobs in a row ended on their nodes before nasflow began there"):
        for _ in range(4):
            state = finish(service, service.submit(script("job")))
            assert (state.status, "with exit code 127" in state.reason) == (JobStatus.LOST, True)
    assert "/no/such/python" in (root / "jobs/job/job.log").read_text()


def test_a_job_whose_work_dir_its_pod_lacks_says_so(root, monkeypatch):
    monkeypatch.setattr(base, "_LAST_WORD", 0.1)
    service = make(root)
    log = root / "jobs" / "job" / "job.log"
    log.mkdir(parents=True)  # as good as no folder
    state = finish(service, service.submit(script("job")))
    assert state.status is JobStatus.LOST
    assert "job.log" in state.reason
    log.rmdir()


@pytest.mark.parametrize("what", ["job", "pod", "job without its pod"])
def test_what_another_program_deletes_is_lost(root, server, batch, core, what):
    service = make(root)
    handle = service.submit(script("job", ["epoch", 1], ["spawn", "daemon"], ["wait", "never"]))
    pids = until(lambda: numbers(service, "jobs/job/pids"), "daemon") + numbers(service, "jobs/job/runs")
    (job,) = jobs(batch, root)
    match what:
        case "job":
            batch.delete_namespaced_job(job, "default", propagation_policy="Background")
        case "pod":
            core.delete_namespaced_pod(pod_of(server, service, handle), "default")
        case _:
            batch.delete_namespaced_job(job, "default", propagation_policy="Orphan")
            until(lambda: not jobs(batch, root), "end of the Job")
            assert service.status(handle).status is JobStatus.RUNNING
            service.cancel(handle)
    state = finish(service, handle)
    if "without" in what:
        assert state.status is JobStatus.CANCELLED
    else:
        assert (state.status, "deleted" in state.reason or "SIGTERM" in state.reason) == (JobStatus.LOST, True)
    assert not any(process_id(pid) for pid in pids)
    until(lambda: not jobs(batch, root) and not pods(server, service), "end of its pods")


def test_the_server_may_be_away(root, server):
    """What runs goes on and its end is seen; what waits begins when it is back."""
    service = make(root)
    handle = service.submit(script("job", ["epoch", 1], ["wait", "go"], ["epoch", 2]))
    until(lambda: epochs(service, handle), "first epoch")
    with server.pause_server():
        service.prepare()
        assert service.status(handle).status is JobStatus.RUNNING
        with pytest.raises(ServiceError, match=r"Kubernetes' API server at https://127\.0\.0\.1:\d+ does not answer"):
            service.validate()
        (root / "go").touch()
        assert finish(service, handle).exit_code == 0
        waiting = service.submit(script("next"))
        assert service.status(waiting).status is JobStatus.PENDING
    assert finish(service, waiting, seconds=90).exit_code == 0
    assert json.loads(json.dumps(epochs(service, handle))) == [[1, False], [2, False]]


def jobs(batch, root) -> list[str]:
    """The names of the root's Jobs."""
    label = f"nasflow/root={name_prefix(root.resolve()).rstrip('-')}"
    return [job.metadata.name for job in batch.list_namespaced_job("default", label_selector=label).items]
