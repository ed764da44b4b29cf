"""Ends the command when one of Prefect's event-loop threads can't start or fails: what waits for it would never end."""

import os
import sys
import threading

from nasflow.clean_text import error_message

EXIT_CODE = 1
_LOOPS = ("GlobalEventLoopThread", "RunSyncEventLoopThread")


def end_without_event_loops() -> None:
    """From now on, an exception that ends a thread of an event loop ends the process with `EXIT_CODE`.

    The process exits at once and cleans nothing up, because other threads may hold any lock. As after SIGKILL, every
    study can go on.
    """
    before = threading.excepthook

    def after(failure: threading.ExceptHookArgs) -> None:
        before(failure)
        if failure.thread is not None and failure.thread.name in _LOOPS and failure.exc_value is not None:
            text = f"Prefect's event loop has ended: {error_message(failure.exc_value)}"
            sys.stderr.flush()
            os.write(2, f"error: {text}; mend this, and run the command again\n".encode(errors="replace"))
            os._exit(EXIT_CODE)

    threading.excepthook = after
