"""Units: groups of members that are stepped together."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any

import torch

from nasflow.errors import InfrastructureError, NasflowError
from nasflow.job import activity
from nasflow.training.device.fault import refuse_fault
from nasflow.training.member.member import Member

Note = Callable[[Mapping[Member, str]], None]
"""Takes members that can't be fused any more, and why."""


class DiffersError(NasflowError):
    """A member's result in a unit differs from its result alone; the message names the difference."""


class CutShortError(NasflowError):
    """A unit's step failed by members that have left it since; the others have to make it again, without them."""


def reasons_of(wrong: Mapping[Member, str]) -> str:
    """Return why members can't be fused any more, as the message of an error."""
    return "; ".join(f"trial {member.trial}: {what}" for member, what in wrong.items())


class guarding:  # noqa: N801 - used as a function; a generator would take twice as long, in each hook of each member
    """Run a member's own code. A crash is attributed to it; `failed` is called with the member and what it raises.

    Others do not notice that it has switched gradients off, nor a default dtype that it has set before it failed.

    Raises:
        InfrastructureError: nobody's fault.
        DeviceFaultError: a fault of the GPU, perhaps another member's.
    """

    __slots__ = ("_failed", "_gradients", "_kind", "_member", "_running")

    def __init__(self, member: Member, failed: Callable[[Member, BaseException], None]):
        self._member, self._failed = member, failed

    def __enter__(self) -> None:
        self._gradients, self._kind = torch.is_grad_enabled(), torch.get_default_dtype()
        self._running = activity.running(self._member.trial)
        self._running.__enter__()
        if self._member.without_gradients:
            torch.set_grad_enabled(False)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        try:
            self._running.__exit__(kind, error, trace)
            if error is None and self._gradients:
                self._member.without_gradients = not torch.is_grad_enabled()
            if not isinstance(error, Exception | SystemExit) or isinstance(error, InfrastructureError):
                return False
            refuse_fault(error)
            self._restore()
            torch.set_default_dtype(self._kind)
            self._failed(self._member, error)  # an error in a member's code is its own failure
        finally:
            self._restore()
        return True

    def _restore(self) -> None:
        if torch.is_grad_enabled() is not self._gradients:
            torch.set_grad_enabled(self._gradients)


class Unit(ABC):
    """Members of a job that are stepped as one. A job steps its units one after the other on each batch.

    Args:
        members: all at the same epoch.
        failed: called with a member and the exception if its own code fails; the member leaves the unit.

    Attributes:
        members: those still in the unit.
        can_wait: whether a step may be made after later batches have been loaded, because no user code can notice.
    """

    can_wait = False

    def __init__(self, members: list[Member], failed: Callable[[Member, BaseException], None]):
        self.members = list(members)
        self._failed = failed

    def start_epoch(self) -> None:
        """Prepare for the first batch of an epoch that all members train."""
        return

    @property
    @abstractmethod
    def is_single(self) -> bool:
        """Whether the unit runs only one member, so that its failure is the member's."""

    @abstractmethod
    def train_batch(self, batch: Any, index: int) -> None:
        """Make one step of every member on a batch that all share."""

    def pass_over(self, batch: Any, index: int) -> None:
        """Take note of a training batch that all members had made their steps on before the job was interrupted."""
        return

    def stop_within(self) -> None:
        """Give the members what was logged and measured in the running epoch so far, to save it."""
        return

    def end_run(self) -> None:
        """Report what the steps since the last call have found, which is read from the device only now."""
        return

    def close(self) -> None:
        """Release what the unit keeps besides its members: it is not used any more."""
        return

    @abstractmethod
    def validate_batch(self, batch: Any, index: int) -> None:
        """Score every member on a batch that all share."""

    @abstractmethod
    def close_epoch(self) -> None:
        """Give the members what was logged and measured in the epoch."""

    def remove(self, member: Member) -> None:
        """Remove a member; the others are not touched."""
        self.members = [other for other in self.members if other is not member]


class SoloUnit(Unit):
    """One member by itself, through its own LightningModule."""

    @property
    def is_single(self) -> bool:
        """Always true."""
        return True

    def train_batch(self, batch: Any, index: int) -> None:
        """Call the member's own step."""
        for member in list(self.members):
            with guarding(member, self._failed):
                member.train_batch(batch, index)

    def validate_batch(self, batch: Any, index: int) -> None:
        """Call the member's own step."""
        for member in list(self.members):
            with guarding(member, self._failed):
                member.validate_batch(batch, index)

    def close_epoch(self) -> None:
        """Do nothing: the member has logged for itself."""
