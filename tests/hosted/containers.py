"""Containers so to speak: a command in a session of its own, with a small environment, that is ended as a whole."""

import subprocess
import threading
import time

import psutil

GRACE = 10.0  # seconds between SIGTERM and SIGKILL; Kubernetes gives 30
PATH = "/usr/local/bin:/usr/bin:/bin"


class Container:
    """Runs a line of bash until it ends or is ended."""

    def __init__(self, line: str, environment: dict[str, str] | None = None):
        self.stopped = False
        self._process = subprocess.Popen(
            ["/bin/bash", "-c", line],
            env={"PATH": PATH, "HOME": "/", **(environment or {})},
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    @property
    def exit_code(self) -> int | None:
        """As a container's: 128 and the signal; None while anything runs."""
        code = self._process.poll()
        return 128 - code if code is not None and code < 0 else code

    def stop(self) -> None:
        """Ask it to end, and end it by force if it has not done so in time. Returns at once."""
        if not self.stopped and self.exit_code is None:
            self._process.terminate()
            threading.Thread(target=self._end, daemon=True).start()
        self.stopped = True

    def kill(self) -> None:
        """End all of it at once, as when its machine fails."""
        if self.exit_code is None:
            main = psutil.Process(self._process.pid)
            every = [main, *main.children(recursive=True)]
            for process in every:
                process.suspend()  # so that none acts on the end of another
            every = [main, *main.children(recursive=True)]
            for process in every:
                process.kill()
            psutil.wait_procs(every, timeout=10)
        self._process.wait(10)

    def _end(self) -> None:
        until = time.monotonic() + GRACE
        while self.exit_code is None and time.monotonic() < until:
            time.sleep(0.05)
        self.kill()
