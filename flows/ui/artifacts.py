"""Prefect artifacts with stable keys and values that are safe to show."""

import hashlib
import logging
import math
import re
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast
from uuid import UUID

import httpx
from prefect.artifacts import create_markdown_artifact, create_progress_artifact, update_progress_artifact

_LOG = logging.getLogger(__name__)

MAX_ROWS = 200


def artifact_key(*parts: object) -> str:
    """Join parts to a key of lowercase letters, digits and dashes. Prefect versions artifacts of equal keys.

    A part that has other characters, as the name of a study may, also gets a hash, so that none has the key of another.
    """
    return "-".join(_key_part(str(part)) for part in parts)


def _key_part(text: str) -> str:
    plain_text = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    return plain_text if plain_text == text else f"{plain_text}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def plain_rows(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the first MAX_ROWS rows, with values that are safe to show."""
    return [{name: plain(value) for name, value in row.items()} for row in rows[:MAX_ROWS]]


_warned = threading.Event()


@contextmanager
def lenient() -> Iterator[None]:
    """Go on when the server refuses or does not answer what only shows something in this block; warn the first time."""
    try:
        yield
    except (httpx.HTTPError, ValueError) as error:  # such as the page of a proxy, which is no JSON
        level = logging.DEBUG if _warned.is_set() else logging.WARNING
        _warned.set()
        _LOG.log(level, "the Prefect UI may lack pictures and bars, and the search goes on without: %s", error)


def is_gone(error: httpx.HTTPError) -> bool:
    """Whether the server says that what was to be updated was deleted."""
    return isinstance(error, httpx.HTTPStatusError) and error.response.status_code == httpx.codes.NOT_FOUND


def show_markdown(key: str, markdown: str, description: str) -> None:
    """Create a Markdown artifact of the calling run, if the server can."""
    with lenient():
        create_markdown_artifact(key=key, markdown=markdown, description=description)


class Progress:
    """Progress bar of one job in the UI. It appears after `every` seconds and is updated at most that often.

    Prefect's server takes about 20 ms to create or update a bar. So a job does not report every short epoch, and a job
    that ends at once has no bar.
    """

    def __init__(self, key: str, description: str, every: float = 1.0):
        self._key, self._description, self._every = key, description, every
        self._id: UUID | None = None
        self._shown = 0.0
        self._at: float | None = None

    def update(self, share: float, last: bool = False) -> None:
        """Show a share in 0..1. Call it when the job begins, often after that, and with `last` when it ends."""
        now = time.monotonic()
        if self._at is None:
            self._at = now
        percent = round(100 * min(max(share, 0.0), 1.0), 1)
        due = now - self._at >= self._every
        if self._id is None and due and not last:
            with lenient():
                created = create_progress_artifact(percent, self._key, self._description)
                self._id = cast(UUID, created)  # not a coroutine, because no event loop runs here
        elif self._id is not None and percent != self._shown and (due or last):
            with lenient():
                self._update(self._id, percent)
        else:
            return
        self._shown, self._at = percent, now

    def _update(self, id: UUID, percent: float) -> None:
        try:
            update_progress_artifact(artifact_id=id, progress=percent)
        except httpx.HTTPError as error:
            if not is_gone(error):
                raise
            self._id = None  # the next update creates it anew


def plain(value: Any) -> Any:
    """Convert a value for JSON: NumPy scalars to Python's, non-finite numbers to None, other objects to text."""
    if hasattr(value, "item") and not isinstance(value, str | bytes):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if value is None or isinstance(value, str | int | float | bool):
        return value
    return str(value)
