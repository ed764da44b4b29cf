"""What the files of jobs tell beyond the study's record: when their processes came up, and how they merged trials."""

from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from nasflow.job.events import Planned, Started, parse_event, read_lines
from nasflow.job.spec import job_dir


@dataclass(frozen=True)
class JobStory:
    """A job by its events: `began` is None where none are here."""

    began: datetime | None = None
    plans: list[dict[str, Any]] = field(default_factory=list)


def job_story(root: Path, job_id: str) -> JobStory:
    """The story of a job below a study's folder."""
    lines, _ = read_lines(job_dir(root, job_id) / "events.jsonl")
    began: datetime | None = None
    plans = []
    for line in lines:
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
