"""Notices that the job's process has been asked to end by SIGTERM, as on a node that a cluster takes back."""

import signal
import threading


class Notice:
    """Whether the job has been asked to end.

    A job in the controller's process, which handles the signal by itself, or in a thread, gets no notice.

    Attributes:
        came: set within moments of the signal.
    """

    def __init__(self) -> None:
        self.came = False
        here = threading.current_thread() is threading.main_thread()
        self._ours = here and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL

    def listen(self) -> None:
        """Handle the signal from now on, in place of Lightning, which would leave with exit code 0."""
        if self._ours:
            signal.signal(signal.SIGTERM, self._note)

    def stop_listening(self) -> None:
        """Let the signal do what it did before, where Lightning does not see to that."""
        if self._ours:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def _note(self, number: int, _: object) -> None:
        self.came = True
