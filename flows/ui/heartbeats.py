"""Heartbeats of the flow runs that nasflow calls: rounds, and the searches of its commands.

Prefect's engine sends a flow run's heartbeats from a thread that sleeps in whole seconds. It waits for that thread when
the flow run ends, which costs half a second on average.
"""

import contextvars
import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import prefect
from prefect.client.schemas.objects import FlowRun
from prefect.events import emit_event
from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, get_current_settings, temporary_settings

_LOG = logging.getLogger(__name__)
_FREQUENCY = contextvars.ContextVar[int | None]("heartbeat frequency", default=None)


class Heartbeats:
    """Sends the heartbeats of a flow run, if the run was called within `without_engine_heartbeats`."""

    def __init__(self, run: FlowRun):
        self._run = run
        self._every = _FREQUENCY.get()
        self._context = contextvars.copy_context()  # gives events their related flow and tags
        self._at: float | None = None

    def send_due(self) -> None:
        """Send a heartbeat if one is due. Any thread may call this, one at a time."""
        now = time.monotonic()
        if self._every is None or (self._at is not None and now - self._at < self._every):
            return
        self._at = now
        self._send()

    def _send(self) -> None:
        resource = {
            "prefect.resource.id": f"prefect.flow-run.{self._run.id}",
            "prefect.resource.name": self._run.name,
            "prefect.version": prefect.__version__,
        }
        self._context.copy().run(emit_event, "prefect.flow-run.heartbeat", resource)

    @contextmanager
    def sent(self) -> Iterator[None]:
        """Send them in this block, from a thread."""
        if self._every is None:
            yield
            return
        ended = threading.Event()
        thread = threading.Thread(
            target=self._keep_sending, args=(self._every, ended), name="nasflow-heartbeats", daemon=True
        )
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def _keep_sending(self, every: float, ended: threading.Event) -> None:
        while True:
            try:
                self._send()
            except Exception:  # the next one may be sent; without any, the search would be taken for dead
                _LOG.debug("a heartbeat could not be sent", exc_info=True)
            if ended.wait(every):
                return


def heartbeat_frequency() -> int | None:
    """Return the seconds between two heartbeats of a flow run, also in `without_engine_heartbeats`; None for none."""
    every = get_current_settings().flows.heartbeat_frequency
    return _FREQUENCY.get() if every is None else every


@contextmanager
def without_engine_heartbeats() -> Iterator[None]:
    """Let flow runs called in this block send their own heartbeats, as often as Prefect's engine would."""
    token = _FREQUENCY.set(heartbeat_frequency())
    try:
        with temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}):
            yield
    finally:
        _FREQUENCY.reset(token)
