"""`nasflow deploy`: deploys a search to the Prefect server, for its workers to run."""

from typing import TYPE_CHECKING

from nasflow.config.search import SearchConfig
from nasflow.errors import UserError

from ...server.client import prefect_client, set_up_prefect
from ...server.errors import refuse_no_server
from ..console import console
from .schedules import When, schedule_text

if TYPE_CHECKING:
    from prefect.client.schemas.schedules import SCHEDULE_TYPES


def deploy_search(config: SearchConfig, name: str | None, when: When, pool: str, overlap: str) -> None:
    """Create the deployment, or update the one of its name, and print how to run it.

    Raises:
        UserError: an option or the config can't be used, there is no such pool, or the server refuses it or is
            unavailable.
    """
    set_up_prefect(verbose=False)
    from ...deployment import apply_deployment, search_deployment  # noqa: PLC0415 - slow

    schedule = when.schedule()
    deployment = search_deployment(config, name, schedule, overlap, pool)
    refuse_no_server()
    with prefect_client() as client:
        from prefect.exceptions import ObjectNotFound  # noqa: PLC0415 - slow

        try:
            client.read_work_pool(pool)
        except ObjectNotFound:
            raise UserError(
                f"Prefect has no work pool '{pool}': create it with 'nasflow setup --work-pool {pool}', or name one "
                "that 'prefect work-pool ls' lists"
            ) from None
        apply_deployment(client, deployment)
    say = console()
    say.print(
        f"deployment '{deployment.full_name}' on work pool '{pool}'{described(config, schedule, overlap)}\n"
        f"run it now: prefect deployment run {deployment.full_name} --watch\n"
        f"its runs wait for a worker: prefect worker start --pool {pool}",
        soft_wrap=True,
    )


def described(config: SearchConfig, schedule: "SCHEDULE_TYPES | None", overlap: str) -> str:
    """Describe when a deployment runs, and what each run does with the study."""
    runs = f" runs {schedule_text(schedule)}" if schedule else ""
    parts = [f"{runs}; a run that is due during another {'waits for its end' if overlap == 'wait' else 'is cancelled'}"]
    if schedule is not None and config.recurring is None:
        parts.append(
            f"every run resumes study '{config.name}', so those after its end find nothing to do: 'recurring: "
            "{study: new}' in the config gives each its own study, 'continue' lets it grow"
        )
    return "\n".join(parts)
