"""Notices that a job has been asked to end: by SIGTERM, as on a node that a cluster takes back, or in its thread."""

import signal
import threading

from nasflow.job.asked_end import asked_here


class Notice:
    """Whether the job has been asked to end.

    A job in the controller's process, which handles the signal by itself, or in a thread, notices no signal. It notices
    what `nasflow.job.asked_end` asks of the thread that makes this.
    """

    def __init__(self) -> None:
        self._signalled = False
        self._asked = asked_here()
        here = threading.current_thread() is threading.main_thread()
        self._ours = here and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL

    @property
    def came(self) -> bool:
        """Whether it has been asked, within moments of that."""
        return self._signalled or self._asked()

    @property
    def text(self) -> str:
        """What has been asked, and how."""
        return "the job's process was asked to end (SIGTERM)" if self._signalled else "the job was asked to end"

    def listen(self) -> None:
        """Handle the signal from now on, in place of Lightning, which would leave with exit code 0."""
        if self._ours:
            signal.signal(signal.SIGTERM, self._note)

    def stop_listening(self) -> None:
        """Let the signal do what it did before, where Lightning does not see to that."""
        if self._ours:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def _note(self, number: int, _: object) -> None:
        self._signalled = True
