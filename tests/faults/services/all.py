"""The services that `python -m tests.faults --service` takes."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path

from tests.faults.kinds import KINDS, Kind
from tests.faults.service_stage import ServiceStage
from tests.faults.services.on_kubernetes import KUBERNETES, kubernetes
from tests.faults.services.on_object_store import OBJECT_STORE, object_store
from tests.faults.services.on_prefect import PREFECT, prefect
from tests.faults.stage import Stage

SERVICES: Mapping[str, Callable[[Path, Stage], AbstractContextManager[ServiceStage]]] = {
    "kubernetes": kubernetes,
    "object-store": object_store,
    "prefect": prefect,
}
"""Starts the servers of each, in a new folder."""

_KINDS = {"kubernetes": KUBERNETES, "object-store": OBJECT_STORE, "prefect": PREFECT}


def kinds_on(service: str | None) -> dict[str, Kind]:
    """Return the kinds of faults of searches on a service; None for this machine's."""
    return KINDS if service is None else _KINDS[service]


ALL_KINDS = sorted({*KINDS, *(name for kinds in _KINDS.values() for name in kinds)})
