"""Lets processes that are forked after a flow end with exit code 0, as the workers of a DataLoader.

Prefect's services of logs and events register a last call for the end of the process. A forked process inherits the
call but not the service; the call fails there, and the process ends with exit code 1 (Prefect 3.8 and 3.9). PyTorch
then raises "DataLoader worker exited unexpectedly" at the end of the first epoch.
"""

import asyncio
import os

from prefect._internal.concurrency import services


def _have_none_to_wait_for() -> None:
    for service in list(services._active_services):
        service._done_event = asyncio.Event()
        service._done_event.set()


os.register_at_fork(after_in_child=_have_none_to_wait_for)  # after Prefect's function, which unsets the event
