"""The page of a search's flow run in the Prefect UI: its tags, and its artifacts, whichever task creates them.

Prefect is imported only once there is a flow run. A session is opened and its config checked without Prefect.
"""

import hashlib
import math
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import Context, copy_context
from datetime import datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

from nasflow.config.search import SearchConfig

from .run_log import warnings_in_log

if TYPE_CHECKING:
    from prefect.artifacts import Artifact
    from prefect.client.schemas.objects import FlowRun

PICTURES_SECONDS = 30.0


STUDY_TAG = "study-id:"
"""Begins the tag of a study."""


def study_tag(name: str, begun: datetime) -> str:
    """Return the tag that distinguishes a study from those of the same name in other stores, by when it was begun."""
    return STUDY_TAG + hashlib.sha256(f"{name} {begun.isoformat()}".encode()).hexdigest()[:12]


class RunPage:
    """Page of the outermost flow run of a session: the search, a retry, or a round that runs by itself.

    Args:
        config: of the search.
        begun: when its study was begun.

    Attributes:
        run: that flow run; None outside of any.
        context: the context of the flow run, outside of its task runs.
    """

    def __init__(self, config: SearchConfig, begun: datetime):
        self._tags = {f"study:{config.name}", f"strategy:{config.strategy.kind}"}
        self._study_tag = study_tag(config.name, begun)
        self._shown: dict[str, UUID] = {}
        self._drawn = -math.inf
        self.run: FlowRun | None = None
        self.context = Context()

    def pictures_due(self) -> bool:
        """Whether to redraw the pictures after a round: not after every one, because rounds may be short."""
        now = time.monotonic()
        due = now - self._drawn > PICTURES_SECONDS
        self._drawn = now if due else self._drawn
        return due

    @contextmanager
    def of_this_run(self) -> Iterator[None]:
        """Make the current flow run the owner of the page in this block, unless the page has an owner.

        Its log then has nasflow's warnings, too.
        """
        run = _flow_run()
        if self.run is not None or run is None:
            yield
            return
        self.run, self.context = run, copy_context()
        self.tag_flow_run(self._study_tag)
        try:
            with warnings_in_log(self.context):
                yield
        finally:
            self.run, self._shown = None, {}

    def tag_flow_run(self, *more: str) -> None:
        """Add the tags of the search, and `more`, to the current flow run."""
        from prefect.client.orchestration import get_client  # noqa: PLC0415

        from .artifacts import lenient  # noqa: PLC0415

        run = _flow_run()
        if run is not None and (lacking := {*self._tags, *more} - set(run.tags)):
            tags = sorted({*run.tags, *lacking})
            with lenient():
                get_client(sync_client=True).update_flow_run(run.id, tags=tags)
                run.tags = tags

    def show_table(self, key: str, rows: Sequence[Mapping[str, Any]], description: str) -> None:
        """Show a table, of the first rows if there are many."""
        from prefect.artifacts import TableArtifact  # noqa: PLC0415

        from .artifacts import lenient, plain_rows  # noqa: PLC0415

        with lenient():
            self._show(TableArtifact(key=key, table=plain_rows(rows), description=description))

    def show_markdown(self, key: str, markdown: str, description: str) -> None:
        """Show a Markdown artifact."""
        from prefect.artifacts import MarkdownArtifact  # noqa: PLC0415

        from .artifacts import lenient  # noqa: PLC0415

        with lenient():
            self._show(MarkdownArtifact(key=key, markdown=markdown, description=description))

    def _show(self, artifact: "Artifact") -> None:
        """Show an artifact on the page. It replaces an earlier artifact that the same run has with its key.

        Raises httpx.HTTPError.
        """
        key = artifact.key or ""
        if key in self._shown and _replace(self._shown[key], artifact):
            return
        artifact.flow_run_id = self.run.id if self.run else None
        made: Any = artifact.create(_sync=True)  # type: ignore[call-arg]
        self._shown[key] = made.id


def _replace(id: UUID, artifact: "Artifact") -> bool:
    """Replace an artifact by another. Returns False if someone has deleted it."""
    from httpx import HTTPStatusError  # noqa: PLC0415
    from prefect.client.orchestration import get_client  # noqa: PLC0415
    from prefect.client.schemas.actions import ArtifactUpdate  # noqa: PLC0415

    from .artifacts import is_gone  # noqa: PLC0415

    new: Any = artifact.format(_sync=True)  # type: ignore[call-arg]
    try:
        update = ArtifactUpdate(data=new, description=artifact.description)
        get_client(sync_client=True).update_artifact(id, update)
    except HTTPStatusError as error:
        if not is_gone(error):
            raise
        return False
    return True


def tag_task_run() -> None:
    """Give the current task run the tags of its flow run. The server receives them with the task run's next state.

    If a task run has tags from the start, as with `prefect.tags`, Prefect asks the server for their concurrency limits
    before it starts. That would double the overhead of a task run.
    """
    from prefect.context import TaskRunContext  # noqa: PLC0415

    context, run = TaskRunContext.get(), _flow_run()
    if context is not None and run is not None:
        context.task_run.tags = sorted({*context.task_run.tags, *run.tags})


def _flow_run() -> "FlowRun | None":
    """The current flow run; None if there is none."""
    if "prefect" not in sys.modules:
        return None
    from prefect.context import FlowRunContext  # noqa: PLC0415

    context = FlowRunContext.get()
    return context.flow_run if context else None
