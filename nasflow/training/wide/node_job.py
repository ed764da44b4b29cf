"""The process of a job on another of its machines, where the service starts one on each."""

import logging
import time
from collections.abc import Callable
from pathlib import Path

from nasflow.errors import ConfigError, InfrastructureError
from nasflow.job import activity
from nasflow.job.events import Event
from nasflow.job.node_jobs import job_of
from nasflow.job.spec import INVITATION, JobSpec, job_dir, trial_dir
from nasflow.training.program.turn import own_turn
from nasflow.training.wide.epochs import epoch_files
from nasflow.training.wide.node import take_part
from nasflow.training.wide.nodes.meeting import Invitation, UnreachedError
from nasflow.training.wide.nodes.other_nodes import COME_WITHIN

_LOG = logging.getLogger(__name__)
_POLL = 0.05  # seconds
_POLL_SHARED = 0.5  # in a folder that may be on a network file system
_HINT = ", and the 'address' of one in training_service.hosts says where the others reach it"
_TRIES_EVERY = 1.0
_GIVES_UP_AFTER = 60.0
_INVITES_WITHIN = 1800.0  # seconds, in which machines that are still missing may come and the first trial be built


class NodeJob:
    """Takes part in each trial to which the job's process invites it, until the service ends it.

    Args:
        spec: the job, with this machine's `node`.
        root: below which its files are on this machine.
        tell: not called; the job's process reports what happens.
    """

    def __init__(self, spec: JobSpec, root: Path, tell: Callable[[Event], None]):
        if spec.node is None:
            raise ConfigError("the job has no other machines")
        self._spec, self._root, self._node = spec, root, spec.node
        invited = job_of(spec.job_id) if self._node.shares_files else spec.job_id
        self._file = job_dir(root, invited) / INVITATION
        self._poll, self._hint, self._tries_for = _POLL, _HINT, _GIVES_UP_AFTER
        if self._node.shares_files:  # the job's process gives up first, for its reason is the one that is shown
            self._poll, self._hint, self._tries_for = _POLL_SHARED, "", 1.1 * COME_WITHIN
        self._answered = ""  # the key of the last invitation
        self._since, self._patience = time.monotonic(), _INVITES_WITHIN

    def run(self) -> None:
        """Wait for invitations.

        Raises:
            InfrastructureError: the job's process can't be reached, or is gone.
        """
        failed, since = "", 0.0  # the key of an invitation, and when it could not be answered at first
        while True:
            invitation = self._next()
            if invitation is None:
                self._refuse_silence()
                time.sleep(self._poll)
                continue
            first = self._node.first or invitation.host
            try:
                ended = self._take_part(invitation, first)
                self._answered = invitation.key
                self._since, self._patience = time.monotonic(), _INVITES_WITHIN if ended else _GIVES_UP_AFTER
            except UnreachedError as error:
                if invitation.key != failed:
                    failed, since = invitation.key, time.monotonic()
                    _LOG.warning("%s:%d can't be reached: %s; trying again", first, invitation.port, error)
                if time.monotonic() - since > self._tries_for:
                    raise InfrastructureError(
                        f"the trial's first machine can't be reached at {first}, port {invitation.port}: {error}; "
                        f"machines have to accept each other's TCP connections{self._hint}"
                    ) from error
                time.sleep(_TRIES_EVERY)

    def _next(self) -> Invitation | None:
        """Return an invitation that was not answered yet."""
        activity.progress()
        try:
            if self._node.shares_files:
                list(self._file.parent.iterdir())  # makes a network file system forget that the file was missing
            found = Invitation.read(self._file)
        except FileNotFoundError:
            return None
        except OSError:  # as a network file system says of a file that is just being removed
            if not self._node.shares_files:
                raise
            return None
        return found if found.key != self._answered else None

    def _take_part(self, invitation: Invitation, first: str) -> bool:
        if self._node.shares_files:
            return take_part(self._spec, self._root, invitation, first, self._node.number)
        folder = trial_dir(self._root, invitation.trial)
        with own_turn(folder / ".ranks.lock", activity.progress):  # which the ranks hold to their ends
            epoch_files.bring(folder)
            ended = take_part(self._spec, self._root, invitation, first, self._node.number)
        if ended:  # the first machine has all, from where it comes again if the trial goes on
            epoch_files.remove(folder)
        return ended

    def _refuse_silence(self) -> None:
        """Raise InfrastructureError if the job's process is gone, and the service of this one can't know that."""
        if self._node.shares_files and time.monotonic() - self._since > self._patience:
            raise InfrastructureError("the job's first machine is gone, or can't be reached any more")
