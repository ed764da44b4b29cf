"""The log of a search's flow run, which also gets what nasflow warns of outside of its flows and tasks."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import Context


class _RunLog(logging.Handler):
    """Sends records of any thread to Prefect's API, as of one flow run."""

    def __init__(self, run: Context):
        from prefect.logging.handlers import APILogHandler  # noqa: PLC0415 - slow

        super().__init__(logging.WARNING)
        self._run, self._api = run, APILogHandler()

    def emit(self, record: logging.LogRecord) -> None:
        self._run.copy().run(self._api.emit, record)


@contextmanager
def warnings_in_log(run: Context) -> Iterator[None]:
    """Put nasflow's own warnings and errors into the log of a flow run during this block.

    Args:
        run: the context of the flow run.
    """
    from prefect.settings import PREFECT_LOGGING_EXTRA_LOGGERS  # noqa: PLC0415 - slow

    log = logging.getLogger("nasflow")
    if log.name in PREFECT_LOGGING_EXTRA_LOGGERS.value():  # Prefect does
        yield
        return
    handler = _RunLog(run)
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)
