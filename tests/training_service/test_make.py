import sys

import pytest

from nasflow.config.job_secrets import JobSecrets
from nasflow.config.services.cluster.dask import DaskServiceConfig
from nasflow.config.services.cluster.kubernetes import KubernetesServiceConfig
from nasflow.config.services.cluster.operators import (
    AdaptdlServiceConfig,
    FrameworkControllerServiceConfig,
    KubeflowServiceConfig,
)
from nasflow.config.services.cluster.ray import RayServiceConfig
from nasflow.config.services.cluster.slurm import SlurmServiceConfig
from nasflow.config.services.custom import CustomServiceConfig
from nasflow.config.services.debug import DebugServiceConfig
from nasflow.config.services.hosted.dlc import DlcServiceConfig
from nasflow.config.services.local import LocalServiceConfig
from nasflow.errors import ConfigError, ServiceError
from nasflow.training_service.debug import DebugService
from nasflow.training_service.local.service import LocalService
from nasflow.training_service.make import make_service

DLC = DlcServiceConfig(
    region="cn-hangzhou", workspace_id="1", access_key_id={"env": "ID"}, access_key_secret={"env": "KEY"}, image="i"
)
MY_SERVICE = """
from nasflow.training_service.local.service import LocalService
from nasflow.config.services.local import LocalServiceConfig

class Mine(LocalService):
    def __init__(self, root, places):
        super().__init__(LocalServiceConfig(slots=places), root)

class Other:
    pass
"""


def test_local(tmp_path):
    service = make_service(LocalServiceConfig(slots=3), tmp_path / "root", tmp_path)
    assert isinstance(service, LocalService)
    assert service.slots() == ("cpu-0", "cpu-1", "cpu-2")


def test_debug(tmp_path):
    service = make_service(DebugServiceConfig(), tmp_path / "root", tmp_path)
    assert isinstance(service, DebugService)
    assert service.slots() == ("here",)


def test_custom(tmp_path):
    (tmp_path / "mine.py").write_text(MY_SERVICE)
    config = CustomServiceConfig(target="mine.py:Mine", params={"places": 2})
    assert make_service(config, tmp_path / "root", tmp_path).slots() == ("cpu-0", "cpu-1")


@pytest.mark.parametrize(
    ("target", "params", "message"),
    [
        ("mine.py:Other", {}, r"training_service\.target: 'mine\.py:Other' is not a subclass"),
        (
            "mine.py:Mine",
            {"slots": 2},
            r"training_service\.params: mine\.py:Mine does not take these params: .*'places'",
        ),
        ("mine.py:Nobody", {}, "has no 'Nobody'"),
    ],
)
def test_custom_with_a_mistake(tmp_path, target, params, message):
    (tmp_path / "mine.py").write_text(MY_SERVICE)
    with pytest.raises(ConfigError, match=message):
        make_service(CustomServiceConfig(target=target, params=params), tmp_path / "root", tmp_path)


def test_jobs_of_a_cluster_are_not_given_a_password(tmp_path):
    secrets = JobSecrets(only_here=("checkpoint.url",))
    with pytest.raises(
        ConfigError, match=r"^checkpoint\.url: jobs of .*'slurm' can't be given its password; write {env:"
    ):
        make_service(SlurmServiceConfig(), tmp_path / "root", tmp_path, secrets)
    make_service(LocalServiceConfig(), tmp_path / "root", tmp_path, secrets)


def test_slurm(tmp_path):
    service = make_service(SlurmServiceConfig(max_jobs=2), tmp_path / "root", tmp_path)
    assert service.slots() == ("slurm-0", "slurm-1")


def test_kubernetes(tmp_path):
    pytest.importorskip("kubernetes", reason="needs the Kubernetes client: install nasflow[kubernetes]")
    service = make_service(KubernetesServiceConfig(image="any", max_jobs=2), tmp_path / "root", tmp_path)
    assert service.slots() == ("kubernetes-0", "kubernetes-1")


@pytest.mark.parametrize(
    ("config", "module"),
    [
        (DaskServiceConfig(), "distributed"),
        (KubernetesServiceConfig(image="any"), "kubernetes"),
        (KubeflowServiceConfig(image="any"), "kubernetes"),
        (FrameworkControllerServiceConfig(image="any"), "kubernetes"),
        (AdaptdlServiceConfig(image="any"), "kubernetes"),
        (DLC, "alibabacloud_pai_dlc20201203"),
    ],
    ids=["dask", "kubernetes", "kubeflow", "frameworkcontroller", "adaptdl", "dlc"],
)
def test_an_extra_that_is_not_installed(tmp_path, monkeypatch, config, module):
    rooms = ("cluster", "cluster.kubernetes", "hosted")
    own = tuple(f"nasflow.training_service.{room}.{config.kind}" for room in rooms)
    own += ("nasflow.training_service.cluster.kubernetes",) if module == "kubernetes" else ()
    for name in [name for name in sys.modules if name.startswith((*own, f"{module}."))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)
    extra = "kubernetes" if module == "kubernetes" else config.kind
    text = rf"'{config.kind}' needs the module '{module}.*install nasflow\[{extra}\]"
    with pytest.raises(ServiceError, match=text):
        make_service(config, tmp_path / "root", tmp_path)


def test_ray_needs_no_package(tmp_path):
    assert make_service(RayServiceConfig(max_jobs=1), tmp_path / "root", tmp_path).slots() == ("ray-0",)
