"""Prefect artifacts with stable keys and values that are safe to show."""

import math
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any, cast
from uuid import UUID

from prefect.artifacts import create_markdown_artifact, create_progress_artifact, update_progress_artifact

MAX_ROWS = 200


def artifact_key(*parts: object) -> str:
    """A key of lowercase letters, digits and dashes; equal parts give equal keys, which Prefect versions."""
    return re.sub(r"[^a-z0-9]+", "-", "-".join(str(part) for part in parts).lower()).strip("-")


def plain_rows(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The first MAX_ROWS rows, with values that are safe to show."""
    return [{name: plain(value) for name, value in row.items()} for row in rows[:MAX_ROWS]]


def show_markdown(key: str, markdown: str, description: str) -> None:
    """A Markdown page of the run that calls this."""
    create_markdown_artifact(key=key, markdown=markdown, description=description)


class Progress:
    """A progress bar of one running job in the UI: there once the job has run `every` seconds, updated no more often.

    Prefect's server needs some 20 ms for a bar and for each update, so a job of many short epochs must not report each
    one, and a job that is over at once has no bar.
    """

    def __init__(self, key: str, description: str, every: float = 1.0):
        self._key, self._description, self._every = key, description, every
        self._id: UUID | None = None
        self._shown = 0.0
        self._at: float | None = None

    def update(self, share: float, last: bool = False) -> None:
        """Show a share of 0..1. Call it first when the job begins, then often, and with `last` at its end."""
        now = time.monotonic()
        if self._at is None:
            self._at = now
        percent = round(100 * min(max(share, 0.0), 1.0), 1)
        due = now - self._at >= self._every
        if self._id is None and due and not last:
            created = create_progress_artifact(percent, self._key, self._description)
            self._id = cast(UUID, created)  # no coroutine, for no event loop runs here
        elif self._id is not None and percent != self._shown and (due or last):
            update_progress_artifact(artifact_id=self._id, progress=percent)
        else:
            return
        self._shown, self._at = percent, now


def plain(value: Any) -> Any:
    """`value` as JSON can hold it: NumPy scalars as Python's, numbers that are not finite as None."""
    if hasattr(value, "item") and not isinstance(value, str | bytes):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if value is None or isinstance(value, str | int | float | bool):
        return value
    return str(value)
