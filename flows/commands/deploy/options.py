"""Options of the commands that deploy a search."""

from enum import StrEnum
from typing import Annotated

import typer

DeploymentName = Annotated[str | None, typer.Option("--name", help="Deployment name; the study's by default.")]
Cron = Annotated[str | None, typer.Option(metavar="EXPRESSION", help="Cron schedule, such as '0 2 * * *'.")]
Interval = Annotated[str | None, typer.Option(metavar="TIME", help="Time between runs: 90 (seconds), 30m, 12h, 7d.")]
Rrule = Annotated[str | None, typer.Option(metavar="RULE", help="Schedule as an iCalendar rule.")]
Timezone = Annotated[str | None, typer.Option(metavar="ZONE", help="Time zone, such as Europe/Berlin; UTC by default.")]
WorkPool = Annotated[str, typer.Option("--work-pool", metavar="NAME", help="Name of the work pool.")]

DEFAULT_POOL = "nasflow"


class Overlap(StrEnum):
    """What happens to a run that is due while another run of its deployment is in progress."""

    WAIT = "wait"
    SKIP = "skip"


Overlaps = Annotated[
    Overlap, typer.Option("--overlap", help="A run that is due during another run waits for its end, or is cancelled.")
]
