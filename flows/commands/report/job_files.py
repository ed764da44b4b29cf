"""Facts from the files of jobs that are not in the study's record: when processes began, and how trials were merged."""

from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from nasflow.job.events import Planned, Started, each_line, parse_event, read_lines
from nasflow.job.spec import job_dir


@dataclass(frozen=True)
class JobStory:
    """Facts from a job's events; `began` is None if this machine has no events of the job."""

    began: datetime | None = None
    plans: list[dict[str, Any]] = field(default_factory=list)


def job_story(root: Path, job_id: str) -> JobStory:
    """Return the story of a job, from the files in a study's folder."""
    began: datetime | None = None
    plans = []
    for line in each_line(partial(read_lines, job_dir(root, job_id) / "events.jsonl")):
        if '"started"' not in line and '"planned"' not in line:
            continue
        try:
            event = parse_event(line)
        except ValidationError:
            continue  # torn by a kill
        if isinstance(event, Started) and began is None:
            began = datetime.fromtimestamp(event.at, UTC)
        elif isinstance(event, Planned):
            plans.append(event.model_dump(mode="json"))
    return JobStory(began, plans)
