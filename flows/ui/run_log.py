"""The log of a search's flow run, which also gets what nasflow warns of outside of its flows and tasks."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import Context, ContextVar
from uuid import UUID

_OURS = ContextVar["_RunLog | None"]("log of the search that runs here", default=None)


class _RunLog(logging.Handler):
    """Sends records to Prefect's API, as of one flow run.

    These are the records of the search's own code, tasks and threads, and those of threads without a flow run: if
    several searches run in this process, these may be of any of them.
    """

    def __init__(self, run: Context):
        from prefect.logging.handlers import APILogHandler  # noqa: PLC0415 - slow

        super().__init__(logging.WARNING)
        self._run, self._api = run, APILogHandler()
        self._id = run.copy().run(_flow_run_id)

    def emit(self, record: logging.LogRecord) -> None:
        in_run = _in_run()
        # A thread that began before this block, such as the one that renews the lease, has the run alone.
        ours = _OURS.get() is self or (_OURS.get() is None and (not in_run or _flow_run_id() == self._id))
        if ours and not (in_run and _has_api_handler(record.name)):  # else Prefect sends it
            self._run.copy().run(self._api.emit, record)


@contextmanager
def warnings_in_log(run: Context) -> Iterator[None]:
    """Put nasflow's own warnings and errors into the log of a flow run during this block.

    Args:
        run: the context of the flow run.
    """
    log, handler = logging.getLogger("nasflow"), _RunLog(run)
    before = _OURS.set(handler)
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)
        _OURS.reset(before)


def _flow_run_id() -> UUID | None:
    """Return the ID of the flow run that goes on in this thread."""
    from prefect.context import FlowRunContext  # noqa: PLC0415 - slow

    context = FlowRunContext.get()
    return context.flow_run.id if context is not None and context.flow_run is not None else None


def _in_run() -> bool:
    """Whether a flow run or a task run goes on in this thread."""
    from prefect.context import FlowRunContext, TaskRunContext  # noqa: PLC0415 - slow

    return FlowRunContext.get() is not None or TaskRunContext.get() is not None


def _has_api_handler(name: str) -> bool:
    """Whether Prefect sends the records of a logger itself, as those of PREFECT_LOGGING_EXTRA_LOGGERS."""
    from prefect.logging.handlers import APILogHandler  # noqa: PLC0415 - slow

    logger: logging.Logger | None = logging.getLogger(name)
    while logger is not None:
        if any(isinstance(handler, APILogHandler) for handler in logger.handlers):
            return True
        logger = logger.parent if logger.propagate else None
    return False
