"""The work pool of searches, and how many of them it may run at once."""

from typing import TYPE_CHECKING

from nasflow.config.search import SearchConfig
from nasflow.config.services.local import LocalServiceConfig
from nasflow.config.services.union import each_service
from nasflow.errors import UserError
from nasflow.training_service.local.slots import slot_environments

from .server_objects import Done, Made

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient


def searches_at_once(slots: int, config: SearchConfig | None) -> int:
    """Return how many searches may run at once with `slots` slots.

    A search with a local training service uses all slots of that service while it runs. If a search's jobs run
    elsewhere, or there is no config here, it counts as one slot.

    Raises:
        UserError: there are too few slots for one search.
    """
    services = [] if config is None else each_service(config.training_service)
    each = sum(len(slot_environments(each)) for each in services if isinstance(each, LocalServiceConfig)) or 1
    if slots < each:
        raise UserError(
            f"--slots {slots}: a search of this config takes {each} slots, so none could ever run; "
            "raise --slots or lower training_service.slots"
        )
    return slots // each


def ensure_pool(client: "SyncPrefectClient", name: str, limit: int | None) -> Made:
    """Create the work pool, of type process, if it is missing, and set its limit unless that is None."""
    from prefect.client.schemas.actions import WorkPoolCreate, WorkPoolUpdate  # noqa: PLC0415 - slow
    from prefect.exceptions import ObjectAlreadyExists, ObjectNotFound  # noqa: PLC0415 - slow
    from prefect.workers.process import ProcessWorker  # noqa: PLC0415 - slow

    done = Done.FOUND
    try:
        pool = client.read_work_pool(name)
    except ObjectNotFound:
        template = ProcessWorker.get_default_base_job_template()
        wanted = WorkPoolCreate(name=name, type=ProcessWorker.type, base_job_template=template, concurrency_limit=limit)
        try:
            pool, done = client.create_work_pool(wanted), Done.CREATED
        except ObjectAlreadyExists:  # another setup has just created it
            pool = client.read_work_pool(name)
    if limit is not None and pool.concurrency_limit != limit:
        client.update_work_pool(name, WorkPoolUpdate(concurrency_limit=limit))
        pool, done = client.read_work_pool(name), Done.CHANGED
    many = "any number of searches" if pool.concurrency_limit is None else _count(pool.concurrency_limit)
    paused = "; it is paused" if pool.is_paused else ""
    return Made("work pool", name, done, f"of type {pool.type}, runs {many} at once{paused}")


def _count(searches: int) -> str:
    return f"{searches} search{'' if searches == 1 else 'es'}"
