"""The Kubernetes service keeps the contract, and its own promises, on a real API server and Job controller."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from nasflow.config.job_secrets import JobSecrets
from nasflow.errors import ServiceError
from nasflow.job.spec import JobSpec
from nasflow.testing.training_service import (
    TrainingServiceContract,
    await_status,
    finish,
    numbers,
    script,
    until,
)
from nasflow.training_service.base import JobStatus

pytest.importorskip("kubernetes", reason="needs the Kubernetes client: install nasflow[kubernetes]")

from tests.training_service.kubernetes.service import batch, core, make, pod_of

__all__ = ["batch", "core"]
# the first test to start may have to build Kubernetes
pytestmark = [pytest.mark.long, pytest.mark.timeout(1800), pytest.mark.usefixtures("server")]
HUSH = "hush-4711"

_KILLED_CONTROLLER = """
import os, sys
from pathlib import Path
from nasflow.load_target import load_target
from nasflow.job.spec import JobSpec
from nasflow.training_service.cluster.kubernetes.api import KubernetesApi
create = KubernetesApi.create
def killed(self, *arguments, **options):
    create(self, *arguments, **options)
    os.kill(os.getpid(), 9)
KubernetesApi.create = killed
load_target(sys.argv[1], Path())(Path(sys.argv[2]), 1).submit(JobSpec.model_validate_json(sys.argv[3]))
"""


class TestKubernetesService(TrainingServiceContract):
    factory = f"{__file__}:make"

    @pytest.fixture(autouse=True)
    def cluster(self, server):
        self.kubernetes = server

    @pytest.fixture
    def root(self, tmp_path):
        return tmp_path / "it's a $(root) 100%d"

    def lose(self, service, handle):
        """Its node is short of memory."""
        self.kubernetes.nodes[0].evict(
            pod_of(self.kubernetes, service, handle), "The node was low on resource: memory."
        )


def report(service, job_id: str = "job") -> dict:
    handle = service.submit(script(job_id, ["report", "report.json"]))
    assert finish(service, handle).exit_code == 0, service.log_tail(handle)
    return json.loads(service.fetch(f"jobs/{job_id}/report.json").read_text())


def test_the_environment_of_jobs(root):
    template = {"spec": {"containers": [{"name": "job", "env": [{"name": "MINE", "value": "a b"}]}]}}
    environment = report(make(root, cpus_per_job=2, pod_template=template))["environment"]
    assert (environment["OMP_NUM_THREADS"], environment["MALLOC_MMAP_MAX_"]) == ("2", "0")
    assert (environment["CUDA_VISIBLE_DEVICES"], environment["MINE"]) == ("", "a b")


def test_what_a_job_asks_for_is_in_its_pod(root, server, core):
    service = make(
        root,
        gpus_per_job=1,
        memory_gb=1.5,
        labels={"team": "vision"},
        node_selector={"kubernetes.io/hostname": "node-0"},
        service_account="default",
        volumes=[{"name": "scratch", "emptyDir": {}}],
        volume_mounts=[{"name": "scratch", "mountPath": "/scratch"}],
        pod_template={"metadata": {"annotations": {"mine": "yes"}}, "spec": {"hostNetwork": True}},
    )
    service.validate()
    handle = service.submit(script("job", ["wait", "never"]))
    pod = core.read_namespaced_pod(pod_of(server, service, handle), "default")
    (container,) = pod.spec.containers
    assert container.resources.limits == {"memory": "1536Mi", "nvidia.com/gpu": "1"}
    assert container.resources.requests["cpu"] == "1"
    assert container.volume_mounts[0].mount_path == "/scratch"
    assert (pod.spec.host_network, pod.spec.automount_service_account_token) == (True, False)
    assert pod.metadata.labels["team"] == "vision"
    assert {"mine", "nasflow/run"} <= set(pod.metadata.annotations)


def test_pods_may_have_the_folder_under_another_path(root, tmp_path):
    there = tmp_path / "there"
    there.symlink_to(tmp_path)
    service = make(root, storage={"local": str(tmp_path), "remote": str(there)})
    handle = service.submit(script("job", ["epoch", 1], ["report", "report.json"]))
    assert finish(service, handle).exit_code == 0, service.log_tail(handle)
    command = service._job(service._records.run("job"))["spec"]["template"]["spec"]["containers"][0]["command"]
    assert any(str(there) in word for word in command)
    assert not any(word.startswith(str(root)) for word in command)


def test_jobs_take_the_gpus_there_are(root):
    service = make(root, slots=3, gpus_per_job=1)
    handles = [service.submit(script(f"job-{i}", ["wait", "go"])) for i in range(3)]
    for handle in handles[:2]:
        await_status(service, handle, JobStatus.RUNNING)
    assert service.status(handles[2]).status is JobStatus.PENDING
    (root / "go").touch()
    assert [finish(service, handle).exit_code for handle in handles] == [0] * 3


def test_a_long_name_in_capitals_is_run_too(root):
    service = make(root)
    handle = service.submit(script("Batch-" + "x" * 60))
    assert finish(service, handle).exit_code == 0


def test_a_controller_killed_at_submitting_submits_once(root, batch):
    spec = script("once", ["wait", "go"])
    program = [sys.executable, "-c", _KILLED_CONTROLLER, f"{__file__}:make", str(root), spec.model_dump_json()]
    assert subprocess.run(program, check=False, capture_output=True).returncode == -9
    service = make(root)
    service.prepare()
    handle = service.submit(JobSpec.model_validate_json(spec.model_dump_json()))
    await_status(service, handle, JobStatus.RUNNING)
    assert sum("-once-" in job.metadata.name for job in batch.list_namespaced_job("default").items) == 1
    (root / "go").touch()
    assert finish(service, handle).exit_code == 0
    assert len(numbers(service, "jobs/once/runs")) == 1


def test_a_run_submitted_twice_is_one(root, batch):
    service = make(root)
    handle = service.submit(script("twice", ["wait", "go"]))
    service._give(service._records.run("twice"))
    await_status(service, handle, JobStatus.RUNNING)
    assert sum("-twice-" in job.metadata.name for job in batch.list_namespaced_job("default").items) == 1
    (root / "go").touch()
    assert finish(service, handle).exit_code == 0


def test_secrets_are_in_no_object_but_a_secret_and_in_no_log(root, server, core, monkeypatch, caplog):
    """Of the API server, its requests on record, the jobs' files, and the containers' logs."""
    from kubernetes import client

    caplog.set_level("DEBUG")
    for name in ("NEEDED", "PGPASSWORD", "WITHHELD", "KEPT"):
        monkeypatch.setenv(name, f"{HUSH}-{name}")
    secrets = JobSecrets(withheld=frozenset({"NEEDED", "WITHHELD"}), needed=frozenset({"NEEDED"}))
    core.create_namespaced_secret("default", {"metadata": {"name": "mine"}, "stringData": {"MINE": f"{HUSH}-MINE"}})
    service = make(root, secrets=secrets, pass_env=["PGPASSWORD"], env_from_secrets=["mine"])
    service.validate()
    handle = service.submit(script("job", ["wait", "report"], ["report", "report.json"]))
    pod_of(server, service, handle)
    everything = [
        client.CoreV1Api(server.api).list_namespaced_pod("default"),
        client.BatchV1Api(server.api).list_namespaced_job("default"),
        client.CoreV1Api(server.api).list_namespaced_config_map("default"),
        client.CoreV1Api(server.api).list_namespaced_event("default"),
    ]
    assert f"{root}"[-5:] in str(everything)
    assert HUSH not in str([each.to_dict() for each in everything])
    assert HUSH.encode() not in b"".join(file.read_bytes() for file in root.rglob("*") if file.is_file())
    assert HUSH.encode() not in (server.folder / "audit.log").read_bytes() + server.nodes[0].logs()
    assert HUSH not in caplog.text
    (root / "report").touch()
    assert finish(service, handle).exit_code == 0
    environment = json.loads((root / "jobs/job/report.json").read_text())["environment"]
    found = {name for name, value in environment.items() if HUSH in value}
    assert found == {"NEEDED", "PGPASSWORD", "MINE"}
    (made,) = [s for s in core.list_namespaced_secret("default").items if s.metadata.name.startswith("nasflow-")]
    assert set(made.data) == {"NEEDED", "PGPASSWORD"}
    monkeypatch.setenv("NEEDED", f"{HUSH}-NEWER")
    newer = make(root, secrets=secrets, pass_env=["PGPASSWORD"])
    assert report(newer, "next")["environment"]["NEEDED"] == f"{HUSH}-NEWER"
    newer.cleanup()
    assert not [s for s in core.list_namespaced_secret("default").items if s.metadata.name.startswith("nasflow-")]
    core.delete_namespaced_secret("mine", "default")


def test_no_list_is_without_a_selector_and_long_ones_come_in_pages(root, server, batch, monkeypatch):
    from nasflow.training_service.cluster.kubernetes import api

    monkeypatch.setattr(api, "_PAGE", 2)
    before = len(server.requests())
    service = make(root, slots=4)
    handles = [service.submit(script(f"job-{i}")) for i in range(5)]
    assert [finish(service, handle).exit_code for handle in handles] == [0] * 5
    until(lambda: not service._look(), "runs that have succeeded are no longer asked for")
    assert len(batch.list_namespaced_job("default").items) >= 5, "though their Jobs stay"
    service.cleanup()
    requests = server.requests()[before:]
    lists = [request["requestURI"] for request in requests if request["verb"] == "list"]
    assert lists
    assert all("labelSelector=nasflow%2Froot%3Dnasflow-" in uri and "limit=2" in uri for uri in lists)
    assert any("continue=" in uri for uri in lists)
    assert {request["verb"] for request in requests} <= {"list", "create", "delete"}
    made = [r for r in requests if r["verb"] == "create" and r["objectRef"]["resource"] == "jobs"]
    assert len(made) == 5


def test_the_role_of_the_docs_is_enough(root, server, tmp_path):
    """And without it, the rights that are missing are named."""
    from kubernetes import client

    def limited(**options):
        return make(root, kubeconfig=server.kubeconfig("limited"), **options)

    with pytest.raises(
        ServiceError, match=r"namespace 'default' this user may not create jobs, list jobs, .*kubernetes\.md"
    ):
        limited().validate()
    page = (Path(__file__).resolve().parents[3] / "docs" / "kubernetes.md").read_text()
    role = yaml.safe_load(re.search(r"```yaml\n(apiVersion: rbac.*?)```", page, flags=re.DOTALL)[1])
    rbac = client.RbacAuthorizationV1Api(server.api)
    rbac.create_namespaced_role("default", {"metadata": {"name": "nasflow"}, "rules": role["rules"]})
    subject = {"kind": "User", "name": "limited", "apiGroup": "rbac.authorization.k8s.io"}
    ref = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "nasflow"}
    bound = {"metadata": {"name": "nasflow"}, "roleRef": ref, "subjects": [subject]}
    rbac.create_namespaced_role_binding("default", bound)
    try:
        service = limited(secrets=None, pass_env=["HOME"])
        until(lambda: not list(service._api.forbidden([("create", "jobs")])), "rights")
        service.validate()
        assert finish(service, service.submit(script("job"))).exit_code == 0
        waiting = service.submit(script("next", ["wait", "never"]))
        await_status(service, waiting, JobStatus.RUNNING)
        service.cleanup()
    finally:
        rbac.delete_namespaced_role_binding("nasflow", "default")
        rbac.delete_namespaced_role("nasflow", "default")


def test_in_a_pod_its_service_account_is_taken(root, server, tmp_path):
    from kubernetes.config import incluster_config

    known = yaml.safe_load((server.folder / "admin.yaml").read_text())["clusters"][0]["cluster"]
    (tmp_path / "token").write_text("admin-token")
    with pytest.MonkeyPatch.context() as inside:
        inside.setenv("KUBECONFIG", str(tmp_path / "none"))
        with pytest.raises(ServiceError, match=r"^training_service\.kubeconfig: \S+/none can't be used"):
            make(root).validate()
        inside.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
        inside.setenv("KUBERNETES_SERVICE_PORT", known["server"].rpartition(":")[2])
        inside.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(tmp_path / "token"))
        inside.setattr(incluster_config, "SERVICE_CERT_FILENAME", known["certificate-authority"])
        make(root).validate()


def test_validate_says_what_is_wrong(root, server, tmp_path, monkeypatch):
    make(root, gpus_per_job=1, memory_gb=0.5, time_limit=60).validate()
    config = yaml.safe_load((server.folder / "admin.yaml").read_text())

    def written(**cluster) -> str:
        config["clusters"][0]["cluster"] |= cluster
        (tmp_path / "config").write_text(yaml.safe_dump(config))
        return str(tmp_path / "config")

    (tmp_path / "broken").write_text("a: [")
    cases = [
        (r"^training_service\.namespace: there is no namespace 'nowhere'$", {"namespace": "nowhere"}),
        (r"refuses such jobs: .*quantities must match", {"pod_template": {"spec": {"overhead": {"cpu": "many"}}}}),
        (
            r"refuses such jobs: .*volumeMounts\[0\]\.name: Not found",
            {"volume_mounts": [{"name": "a", "mountPath": "/a"}]},
        ),
        (r"^training_service\.kubeconfig: .*none can't be used", {"kubeconfig": str(tmp_path / "none")}),
        (r"^training_service\.kubeconfig: .*broken can't be used", {"kubeconfig": str(tmp_path / "broken")}),
        (r"^training_service\.kubeconfig: .*no-such", {"context": "no-such"}),
        (r"https://127\.0\.0\.1:9 does not answer", {"kubeconfig": written(server="https://127.0.0.1:9")}),
    ]
    for message, options in cases:
        with pytest.raises(ServiceError, match=message):
            make(root, **options).validate()
    assert not root.exists()
    config["users"][0]["user"]["token"] = "wrong"
    real = yaml.safe_load((server.folder / "admin.yaml").read_text())["clusters"][0]["cluster"]["server"]
    with pytest.raises(ServiceError, match=r"^training_service\.kubeconfig: https://.* does not know this user"):
        make(root, kubeconfig=written(server=real)).validate()
