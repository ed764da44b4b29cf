"""An invitation that the job's service brings to the other machines, where a process of the job waits for it."""

from pathlib import Path

from nasflow.training.wide.nodes.meeting import Invitation


class Posted:
    """The file from which the service takes it; it is there as long as the trial trains.

    Args:
        invitation: to the processes on the other machines.
        file: where the service looks for it.
    """

    def __init__(self, invitation: Invitation, file: Path):
        self._file = file
        invitation.write(file)

    def poll(self) -> None:
        """Do nothing: the service sees how those processes are, and ends the job if one has ended."""

    def wait(self, timeout: float | None = None) -> None:
        """Remove the file; the processes go on to the job's next trial."""
        self.kill()

    def kill(self) -> None:
        """Remove the file."""
        self._file.unlink(missing_ok=True)
