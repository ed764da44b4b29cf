"""How jobs of operators end, on a real API server, scheduler and garbage collector."""

import pytest

from nasflow.attempt.verdict import judge
from nasflow.errors import ServiceError
from nasflow.study.records import FailureKind
from nasflow.testing.training_service import finish, numbers, script, until
from nasflow.training_service.base import JobStatus

pytest.importorskip("kubernetes", reason="needs the Kubernetes client: install nasflow[kubernetes]")

from tests.training_service.kubernetes.operators import services

# the first test to start may have to build Kubernetes
pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]


@pytest.fixture
def root(tmp_path):
    return tmp_path / "root"


MAKERS = {
    "PyTorchJob": services.pytorch_job,
    "TrainJob": services.train_job,
    "Framework": services.framework,
    "AdaptDLJob": services.adaptdl_job,
}


@pytest.fixture(params=MAKERS.values(), ids=MAKERS)
def make(request, operators, root):
    """Makes the service, whose jobs end with the test."""
    yield lambda **options: request.param(root, **options)
    request.param(root).cleanup()


@pytest.fixture
def objects(operators):
    """A function that returns the objects of a service that are left."""
    from kubernetes import client

    api = client.CustomObjectsApi(operators.api)

    def left(service) -> list:
        where = (*service.api_version.split("/"), "default", service.resource)
        return api.list_namespaced_custom_object(*where, label_selector=service._selector)["items"]

    return left


def test_validate_creates_nothing(make, objects):
    service = make(time_limit=60, memory_gb=0.5, gpus_per_job=1)
    service.validate()
    assert objects(service) == []


def test_the_server_refuses_what_is_no_such_object(make, operators, monkeypatch):
    service = make()
    body = service._body
    monkeypatch.setattr(service, "_body", lambda *arguments: {**body(*arguments), "spec": []})
    if service.besides:
        monkeypatch.setattr(service, "_runtime", lambda pod, of=service._runtime: {**of(pod), "spec": []})
    with pytest.raises(ServiceError, match=r"^training_service: Kubernetes refuses such jobs: .*spec"):
        service.validate()


def test_a_cluster_without_the_operator(make, operators, monkeypatch):
    service = make()
    for resource in service._api._versions:
        monkeypatch.setitem(service._api._versions, resource, "nowhere.example.com/v1")
    with pytest.raises(ServiceError, match=r"^training_service\.kind: https://.* does not know such jobs; install"):
        service.validate()


def test_a_container_without_memory_is_the_trials_failure(make):
    service = make(memory_gb=0.5)
    state = finish(service, service.submit(script("job", ["hold", 700 * 2**20], ["wait", "never"])))
    assert (state.status, state.signal, state.oom_kills) == (JobStatus.EXITED, 9, 1)
    assert "ran out of memory; see training_service.memory_gb" in state.reason
    assert judge(state, None).out_of_memory


def test_an_evicted_pod_is_no_trials_failure(make, operators, objects):
    service = make()
    handle = service.submit(script("job", ["wait", "never"]))
    until(lambda: service.status(handle) and numbers(service, "jobs/job/runs"), "start of the job")
    operators.nodes[0].evict(services.pod_of(operators, service, handle), "The node was low on resource: memory.")
    state = finish(service, handle)
    assert state.status is JobStatus.LOST
    assert "low on resource" in state.reason
    assert judge(state, None).failure is FailureKind.INFRASTRUCTURE
    until(lambda: not objects(service), "end of its object")


def test_a_framework_that_another_program_stops_is_no_trials_failure(root, operators, objects):
    from kubernetes import client

    service = services.framework(root)
    handle = service.submit(script("job", ["wait", "never"]))
    until(lambda: service.status(handle) and numbers(service, "jobs/job/runs"), "start of the job")
    (running,) = objects(service)
    where = (*service.api_version.split("/"), "default", service.resource, running["metadata"]["name"])
    stop = {"spec": {"executionType": "Stop"}}
    client.CustomObjectsApi(operators.api).patch_namespaced_custom_object(*where, stop)
    state = finish(service, handle)
    assert state.status is JobStatus.LOST
    assert judge(state, None).failure is FailureKind.INFRASTRUCTURE
    until(lambda: not objects(service), "end of its object")


def test_objects_of_jobs_that_have_ended(make, objects):
    """Kubeflow removes them after a time; FrameworkController would keep them for a month."""
    service = make()
    assert finish(service, service.submit(script("job"))).exit_code == 0
    if service.stay:
        assert len(objects(service)) == 1
    else:
        until(lambda: not objects(service), "end of its object")
    service.cleanup()
    until(lambda: not objects(service), "end of all objects")


def test_no_list_is_without_a_selector(make, operators):
    before = len(operators.requests())
    service = make()
    assert finish(service, service.submit(script("job"))).exit_code == 0
    requests = operators.requests()[before:]
    lists = [request["requestURI"] for request in requests if request["verb"] == "list"]
    assert {uri.partition("?")[0].rpartition("/")[2] for uri in lists} == {service.resource, "pods"}
    assert all("labelSelector=nasflow%2Froot%3Dnasflow-" in uri and "limit=" in uri for uri in lists)
