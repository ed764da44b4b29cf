"""Builds the training service named in a config."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from nasflow.config.job_secrets import NO_SECRETS, JobSecrets
from nasflow.config.secret.secrets import give
from nasflow.config.services.custom import CustomServiceConfig
from nasflow.config.services.debug import DebugServiceConfig
from nasflow.config.services.local import LocalServiceConfig
from nasflow.config.services.prefect import PrefectServiceConfig
from nasflow.config.services.several import SeveralServicesConfig
from nasflow.config.services.ssh import SshServiceConfig
from nasflow.config.services.union import ServiceConfig
from nasflow.errors import ConfigError, ServiceError
from nasflow.load_target import check_params, load_target
from nasflow.training_service.base import TrainingService
from nasflow.training_service.files.shared_root import RootHere
from nasflow.training_service.local.service import RUNNER, LocalService

_IMPORTED_WHEN_USED = {
    "slurm": "cluster.slurm:SlurmService",
    "ray": "cluster.ray:RayService",
    "dask": "cluster.dask:DaskService",
    "kubernetes": "cluster.kubernetes.service:KubernetesService",
    "kubeflow": "cluster.kubernetes.kubeflow:kubeflow_service",
    "frameworkcontroller": "cluster.kubernetes.frameworkcontroller:FrameworkControllerService",
    "adaptdl": "cluster.kubernetes.adaptdl:AdaptdlService",
    "openpai": "hosted.openpai:OpenpaiService",
    "dlts": "hosted.dlts:DltsService",
    "dlc": "hosted.dlc:DlcService",
    "azureml": "hosted.azureml:AzuremlService",
}
_EXTRAS = dict.fromkeys(("kubeflow", "frameworkcontroller", "adaptdl"), "kubernetes")
PrefectMaker = Callable[[PrefectServiceConfig, Path, JobSecrets, str], TrainingService]


def make_service(
    config: ServiceConfig,
    root: Path,
    base_dir: Path,
    secrets: JobSecrets = NO_SECRETS,
    prefect: PrefectMaker | None = None,
    *,
    runner: str = RUNNER,
) -> TrainingService:
    """Return the service for a study's root folder. A custom one is built as `Class(root, **params)`.

    Args:
        config: the `training_service` section of the search config.
        root: the folder of the study's jobs and checkpoints.
        base_dir: the folder of the user's code; a `file.py:Name` target is relative to it.
        secrets: what jobs get of the search's secrets.
        prefect: makes the service of kind `prefect`, for which only flows have the code.
        runner: `module:function` that runs one `job.json`; a custom service gets another one than that of training
            jobs as its argument `runner`.

    Raises:
        ConfigError: the target of a custom service does not exist, is not a training service, or rejects its params;
            or jobs there can't be given a secret that they need.
        ServiceError: a package that the service needs is not installed.
    """
    if isinstance(config, SeveralServicesConfig):
        return _several(config, root, base_dir, secrets, runner)
    if secrets.only_here and not isinstance(config, LocalServiceConfig | SshServiceConfig | DebugServiceConfig):
        raise ConfigError(
            f"{secrets.only_here[0]}: jobs of training_service '{config.kind}' can't be given its password; write "
            "{env: NAME}, and set that variable where they run"
        )
    match config:
        case LocalServiceConfig():
            return LocalService(config, root, runner, secrets=secrets)
        case SshServiceConfig():
            from nasflow.training_service.ssh.service import SshService  # noqa: PLC0415 - slow

            return SshService(config, root, base_dir, runner, secrets=secrets)
        case PrefectServiceConfig():
            if prefect is None:
                raise ServiceError("training_service.kind: 'prefect' is made by nasflow.flows.pool.make.make_service")
            return prefect(config, root, secrets, runner)
        case DebugServiceConfig():
            from nasflow.training_service.debug import DebugService  # noqa: PLC0415 - rarely asked for

            give(secrets.texts())  # its jobs run in this process
            return DebugService(config, root, runner)
        case CustomServiceConfig():
            return _custom(config, root, base_dir, runner)
        case _:
            return _cluster(config, root, secrets, runner)


def _cluster(config: ServiceConfig, root: Path, secrets: JobSecrets, runner: str) -> TrainingService:
    """Return the service of a cluster, whose module is imported only now."""
    module, _, name = _IMPORTED_WHEN_USED[config.kind].partition(":")
    with _needing(config.kind, _EXTRAS.get(config.kind, config.kind)):
        service = getattr(import_module(f"nasflow.training_service.{module}"), name)
    inherits = {"secrets": secrets} if module.startswith("cluster.") else {}  # hosted jobs inherit nothing from here
    made: TrainingService = service(config, root, runner, **inherits)
    return made


@contextmanager
def _needing(kind: str, extra: str) -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        raise ServiceError(
            f"training_service.kind: '{kind}' needs the module '{error.name}'; install nasflow[{extra}]"
        ) from error


def _several(
    config: SeveralServicesConfig, root: Path, base_dir: Path, secrets: JobSecrets, runner: str
) -> TrainingService:
    from nasflow.training_service.several.service import SeveralServices  # noqa: PLC0415 - rarely asked for

    services: dict[str, RootHere] = {}
    for place, section in enumerate(config.services):
        service = make_service(section, root, base_dir, secrets, runner=runner)
        services[section.kind] = one_of_several(place, service)
    return SeveralServices(services, root)


def one_of_several(place: int, service: TrainingService) -> RootHere:
    """Return one of several services, of which `place` is the number in the config. Raises ConfigError for a misfit."""
    if not isinstance(service, RootHere):
        raise ConfigError(
            f"training_service.{place}: one of several services has its jobs' files on this machine; derive the "
            "class from nasflow.training_service.files.shared_root.RootHere"
        )
    return service


def _custom(config: CustomServiceConfig, root: Path, base_dir: Path, runner: str) -> TrainingService:
    service: Any = load_target(config.target, base_dir)
    if not (isinstance(service, type) and issubclass(service, TrainingService)):
        raise ConfigError(
            f"training_service.target: '{config.target}' is not a subclass of "
            "nasflow.training_service.base.TrainingService"
        )
    build: Callable[..., TrainingService] = service
    params = config.params if runner == RUNNER else {**config.params, "runner": runner}
    check_params("training_service.params", config.target, build, root, **params)
    return build(root, **params)
