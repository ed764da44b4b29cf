"""The server that Prefect starts by itself for a program that names none."""

import os
import signal
import subprocess
import threading
from functools import partial
from types import SimpleNamespace

from nasflow.training_service.machine.processes import die_with_parent


def start_own_server() -> None:
    """Start Prefect's own server now, in a process group of its own, if this program would use it; else do nothing.

    A terminal sends Ctrl-C to all processes of a group. A server that ended with the search could not record how the
    search ended, and Prefect's client would try to reach it for minutes. The server ends with this process.
    """
    from prefect.settings import get_current_settings  # noqa: PLC0415 - slow

    settings = get_current_settings()
    if settings.api.url or not settings.server.ephemeral.enabled:
        return
    from prefect.server.api import server  # noqa: PLC0415 - slow, and not needed where a server is named

    options = {}
    if threading.current_thread() is threading.main_thread():  # the kernel means the thread that starts it
        options["preexec_fn"] = partial(die_with_parent, os.getpid(), signal.SIGTERM)
    start = partial(subprocess.Popen, process_group=0, **options)
    module = vars(server)
    module["subprocess"] = SimpleNamespace(Popen=start, TimeoutExpired=subprocess.TimeoutExpired)
    try:
        server.SubprocessASGIServer().start()
    finally:
        module["subprocess"] = subprocess
