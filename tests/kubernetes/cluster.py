"""A real Kubernetes without containers, on this machine, for the tests of a file: an idle one takes a tenth of a core.

etcd, API server, controller manager and scheduler are Kubernetes' own; `tests.kubernetes.node` stands in for the nodes.
"""

import contextlib
import json
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from tests.kubernetes.programs import lacking, programs

_AUDIT = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [{"level": "Metadata"}],
}
_USERS = {"admin": "system:masters", "limited": "limited"}


class Cluster:
    """The cluster, in a folder. `limited` is a user who has no rights but those that a test gives."""

    def __init__(self, folder: Path):
        self.folder = folder
        self._programs: dict[str, subprocess.Popen[bytes]] = {}
        self.nodes: list[Any] = []
        self._ports: list[int] = []

    def kubeconfig(self, user: str = "admin") -> str:
        return str(self.folder / f"{user}.yaml")

    @property
    def api(self) -> Any:
        from kubernetes import config

        return config.new_client_from_config(self.kubeconfig())

    def start(self) -> None:
        found = programs()
        self._ports = _free_ports(3)
        etcd, peers, port = self._ports
        _write_keys(self.folder)
        (self.folder / "audit-policy.yaml").write_text(yaml.safe_dump(_AUDIT))
        (self.folder / "tokens.csv").write_text("".join(f"{u}-token,{u},{u},{g}\n" for u, g in _USERS.items()))
        store, other = f"http://127.0.0.1:{etcd}", f"http://127.0.0.1:{peers}"
        self._start(
            *(shutil.which("etcd") or "etcd", "--data-dir=etcd", "--unsafe-no-fsync=true"),
            *(f"--listen-client-urls={store}", f"--advertise-client-urls={store}", f"--listen-peer-urls={other}"),
            *(f"--initial-advertise-peer-urls={other}", f"--initial-cluster=default={other}"),
            *("--heartbeat-interval=1000", "--election-timeout=10000"),  # it has no peers
        )
        self._start(
            *(str(found / "kube-apiserver"), f"--etcd-servers={store}", "--bind-address=127.0.0.1"),
            *(f"--secure-port={port}", "--insecure-port=0", "--cert-dir=certs", "--token-auth-file=tokens.csv"),
            *("--authorization-mode=RBAC", "--service-cluster-ip-range=10.0.0.0/24"),
            *("--service-account-issuer=https://nasflow.test", "--service-account-key-file=sa.pub"),
            *("--service-account-signing-key-file=sa.key", "--disable-admission-plugins=ServiceAccount"),
            *("--audit-policy-file=audit-policy.yaml", "--audit-log-path=audit.log"),
        )
        self._await_ready(port)
        shared = ("--kubeconfig=admin.yaml", "--leader-elect=false", "--port=0", "--secure-port=0")
        self._start(
            *(str(found / "kube-controller-manager"), *shared, "--cert-dir=manager-certs"),
            *("--controllers=*,-nodeipam", "--service-account-private-key-file=sa.key"),
            *("--node-monitor-period=1s", "--node-monitor-grace-period=15s"),
        )
        self._start(str(found / "kube-scheduler"), *shared, "--cert-dir=scheduler-certs")

    def stop(self) -> None:
        """The API server before etcd, without which it would linger."""
        with contextlib.ExitStack() as last:
            last.callback(self._stop_programs)
            for node in self.nodes:
                last.callback(node.stop)

    def _stop_programs(self) -> None:
        for program in reversed(self._programs.values()):
            program.terminate()
            try:
                program.wait(20)
            except subprocess.TimeoutExpired:
                program.kill()
                program.wait()

    def pause_server(self) -> contextlib.AbstractContextManager[None]:
        """The API server is away."""

        @contextlib.contextmanager
        def paused() -> Iterator[None]:
            arguments = self._programs["kube-apiserver"].args
            self._programs["kube-apiserver"].kill()  # told to end, it waits for its clients first
            self._programs["kube-apiserver"].wait()
            try:
                yield
            finally:
                self._start(*arguments)
                self._await_ready(self._ports[2])

        return paused()

    def node(self, name: str, gpus: int = 2) -> Any:
        """A new node."""
        from tests.kubernetes.node import Node

        (self.folder / name).mkdir()
        node = Node(self.api, name, self.folder / name, gpus)
        node.start()
        self.nodes.append(node)
        return node

    def remove_node(self, node: Any) -> None:
        self.nodes.remove(node)
        node.stop()

    def pods(self, labels: str) -> list[str]:
        """The names of the pods that a label selector selects."""
        from kubernetes import client

        found = client.CoreV1Api(self.api).list_namespaced_pod("default", label_selector=labels)
        return [pod.metadata.name for pod in found.items]

    def requests(self) -> list[dict[str, Any]]:
        """Every request of nasflow that the API server has had: `verb`, `requestURI`, `objectRef` and more."""
        records = [json.loads(line) for line in (self.folder / "audit.log").read_text().splitlines()]
        return [record for record in records if record.get("userAgent") == "nasflow"]

    def _start(self, *command: str) -> None:
        name = Path(command[0]).name
        with (self.folder / f"{name}.log").open("ab") as log:
            self._programs[name] = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.folder
            )

    def _await_ready(self, port: int) -> None:
        certificate = self.folder / "certs" / "apiserver.crt"
        deadline = time.monotonic() + 120
        while not certificate.exists() or not self._ready(port, certificate):
            ended = [name for name, program in self._programs.items() if program.poll() is not None]
            if ended or time.monotonic() > deadline:
                logs = "\n".join(path.read_text()[-2000:] for path in self.folder.glob("*.log"))
                raise RuntimeError(f"Kubernetes is not ready; ended: {ended}\n{logs}")
            time.sleep(0.1)

    def _ready(self, port: int, certificate: Path) -> bool:
        from kubernetes import client

        cluster = {"server": f"https://127.0.0.1:{port}", "certificate-authority": str(certificate)}
        for user in _USERS:
            made = {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [{"name": "test", "cluster": cluster}],
                "users": [{"name": user, "user": {"token": f"{user}-token"}}],
                "contexts": [{"name": "test", "context": {"cluster": "test", "user": user}}],
                "current-context": "test",
            }
            Path(self.kubeconfig(user)).write_text(yaml.safe_dump(made))
        try:
            self.api.call_api("/readyz", "GET", auth_settings=["BearerToken"], _request_timeout=30)
            client.CoreV1Api(self.api).read_namespace("default")
        except Exception:  # of any kind while it starts
            return False
        return True


@contextlib.contextmanager
def start_cluster(folder: Path, nodes: int = 1) -> Iterator[Cluster]:
    """A cluster in a folder, with so many nodes."""
    folder.mkdir(exist_ok=True)
    cluster = Cluster(folder)
    try:
        cluster.start()
        for number in range(nodes):
            cluster.node(f"node-{number}")
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture(scope="module")
def kubernetes_cluster() -> Iterator[Cluster]:
    """The cluster, with one node of two GPUs."""
    if reason := lacking():
        pytest.skip(f"needs {reason}")
    folder = Path(tempfile.mkdtemp(prefix="nasflow-kubernetes-"))
    try:
        with start_cluster(folder) as cluster:
            yield cluster
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _write_keys(folder: Path) -> None:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    (folder / "sa.key").write_bytes(key.private_bytes(pem, serialization.PrivateFormat.TraditionalOpenSSL, plain))
    (folder / "sa.pub").write_bytes(key.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo))


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports
