"""How many devices the jobs of a search have, which its services and `evaluator.parallel` say together."""

from typing import Any

from nasflow.config.evaluator.parallel import ParallelConfig
from nasflow.config.services.cluster.kubernetes import KubernetesServiceConfig
from nasflow.config.services.cluster.operators import FrameworkControllerServiceConfig, KubeflowServiceConfig
from nasflow.config.services.cluster.slurm import SlurmServiceConfig
from nasflow.config.services.debug import DebugServiceConfig
from nasflow.config.services.local import LocalServiceConfig
from nasflow.config.services.several import SeveralServicesConfig
from nasflow.config.services.ssh import SshServiceConfig
from nasflow.config.services.storage import ClusterConfig, ObjectStoreConfig

_SEVERAL_MACHINES = (
    SlurmServiceConfig,
    KubernetesServiceConfig,
    KubeflowServiceConfig,
    FrameworkControllerServiceConfig,
)
"""Sections of clusters where a job may have several machines, which see one folder."""
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


def devices_of_a_job(service: Any) -> int:
    """Return how many devices a job of a service takes; a part of one counts as one."""
    return max(1, int(getattr(service, "devices_per_job", getattr(service, "gpus_per_job", 1))))


def sections_of(service: Any) -> list[Any]:
    """Return the sections of several services, or the only one."""
    return [*service.services] if isinstance(service, SeveralServicesConfig) else [service]


def refuse_unlike(service: Any) -> None:
    """Raise ValueError if a job would have more devices on one service than on another."""
    counts = {section.kind: devices_of_a_job(section) for section in sections_of(service)}
    if len(set(counts.values())) > 1:
        each = ", ".join(f"{kind} {count}" for kind, count in counts.items())
        raise ValueError(
            f"training_service: a job would have unlike numbers of devices ({each}), and any job may run on any of "
            "the services; give each the same 'gpus_per_job' or 'devices_per_job'"
        )


def with_devices(service: Any, parallel: ParallelConfig) -> Any:
    """Return the section with as many devices a job as a trial that is trained on several has.

    Raises:
        ValueError: its jobs can't have them.
    """
    if isinstance(service, SeveralServicesConfig):
        return service.replaced(services=[with_devices(each, parallel) for each in service.services])
    if isinstance(service, DebugServiceConfig):
        raise ValueError(
            "evaluator: 'parallel' starts several processes, and training_service.kind debug has none; take local"
        )
    if parallel.nodes > 1:
        _refuse_nodes(service, parallel)
    if isinstance(service, LocalServiceConfig | SshServiceConfig):
        if service.devices_per_job not in (1, parallel.devices):
            raise ValueError(
                "training_service: 'devices_per_job' follows from evaluator.parallel.devices; leave it out"
            )
        service = service.derived(devices_per_job=parallel.devices)
        if (most := service.devices) < parallel.devices:
            raise ValueError(
                f"evaluator: 'parallel' asks for {parallel.devices} devices, and training_service has {most}; change "
                f"evaluator.parallel.devices or training_service.{service.devices_key}"
            )
        return service
    if getattr(service, "gpus_per_job", 0) not in (0, parallel.devices):
        raise ValueError(
            f"training_service: 'gpus_per_job' is {service.gpus_per_job:g}, and evaluator.parallel.devices "
            f"{parallel.devices}; give as many GPUs as each machine has devices, or none to train on the CPU"
        )
    return service.with_most_nodes(parallel.nodes) if isinstance(service, ClusterConfig) else service


def without_devices(service: Any) -> Any:
    """Return the section with the default of the key that `with_devices` sets."""
    if isinstance(service, SeveralServicesConfig):
        return service.replaced(services=[without_devices(each) for each in service.services])
    if isinstance(service, LocalServiceConfig | SshServiceConfig):
        return service.replaced(devices_per_job=type(service).model_fields["devices_per_job"].default)
    return service


def as_given(service: Any) -> Any:
    """Return the section without what `with_devices` has set in it."""
    if isinstance(service, SeveralServicesConfig):
        return service.replaced(services=[as_given(each) for each in service.services])
    return service.as_given()


def _refuse_nodes(service: Any, parallel: ParallelConfig) -> None:
    if isinstance(service, SshServiceConfig):
        if (hosts := len(service.hosts)) < parallel.nodes:
            raise ValueError(
                f"evaluator.parallel: 'nodes' is {parallel.nodes}, and training_service.hosts has {hosts}; list as "
                "many hosts, or ask for fewer"
            )
        near = [host.name for host in service.hosts if host.host in _LOOPBACK and host.address is None]
        if near and len(near) < hosts:
            raise ValueError(
                f"training_service.hosts: other hosts can't reach '{near[0]}' by that name, as evaluator.parallel "
                "with several 'nodes' needs; give it an 'address' by which they can"
            )
        return
    if not isinstance(service, _SEVERAL_MACHINES):
        raise ValueError(
            f"evaluator.parallel: 'nodes' is {parallel.nodes}, and a job of training_service.kind {service.kind} has "
            "one machine; leave 'nodes' out, or take SSH hosts, a Slurm cluster, Kubernetes, Kubeflow or "
            "FrameworkController"
        )
    if isinstance(service.storage, ObjectStoreConfig):
        raise ValueError(
            "evaluator.parallel: several 'nodes' need a folder that all of them see, for an epoch counts once all have "
            "saved it there; leave training_service.storage out, or give a shared folder"
        )
