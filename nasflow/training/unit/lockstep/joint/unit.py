"""A unit of LightningModules whose steps run once for all members."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from nasflow.training.member.batches import copied
from nasflow.training.member.member import Member
from nasflow.training.member.metric_log import batch_size_of
from nasflow.training.member.metric_states import metric_states
from nasflow.training.unit.base import DiffersError
from nasflow.training.unit.lockstep.joint.steps import TRAINING, VALIDATION, Computed, JointSteps
from nasflow.training.unit.lockstep.joint.view import NotJointError
from nasflow.training.unit.lockstep.reading import MODEL
from nasflow.training.unit.lockstep.unit import LockstepUnit

_MOST_SEEN = 4


class JointUnit(LockstepUnit):
    """As a LockstepUnit, for steps that compute the same for every member from the output of its model.

    A step that turns out to be none ends the unit; its members train the epoch again, step by step.

    Args:
        apart: called with members whose steps can't run as one, before a DiffersError is raised.
    """

    can_wait = True

    def __init__(self, *args: Any, apart: Callable[[Sequence[Member]], None], **options: Any):
        self._apart = apart
        self._batches: dict[tuple[str, int], Any] = {}  # the first of each size, to probe with
        self._outputs: list[torch.Tensor] = []  # of the members' models in this step
        self._is_validation_checked = False
        super().__init__(*args, **options)
        for member in self.members:
            member.is_joint = True

    def train_batch(self, batch: Any, index: int) -> None:
        """Make one step of every member."""
        if index == 0:
            if self._compare is not None:
                self._compare(self, batch)
            self._refuse_changes()
        began = time.perf_counter()
        self._optimizer.zero_grad()
        with self._giving_up():
            found = self._record(TRAINING, batch, index)
            if found.losses is not None:
                self._drop_not_finite(found.losses, index)
                self._backpropagate_rows(found.losses)
        self._optimizer.step(self._idle(()) if found.losses is None else set())
        for member in self.members:
            member.fitting.count_step()
        self._end_steps(index + 1)
        self._averages.update()
        self._seconds += time.perf_counter() - began

    def validate_batch(self, batch: Any, index: int) -> None:
        """Score every member."""
        began = time.perf_counter()
        twin = None if self._is_validation_checked else self.members[0].twin()
        with self._giving_up():
            self._record(VALIDATION, batch, index)
            if twin is not None:
                self._check_validation(twin, batch, index)
        self._seconds += time.perf_counter() - began

    def _try_losses(self, batch: Any, index: int) -> dict[Member, torch.Tensor]:
        found = self._record(TRAINING, batch, index)
        if found.losses is None:
            self._reached = {MODEL: set()}
            return {}
        self._backpropagate_rows(found.losses)
        return dict(zip(self._rows, found.losses.unbind(), strict=True))

    def _record(self, name: str, batch: Any, index: int) -> Computed:
        if len(self._batches) < _MOST_SEEN:
            self._batches.setdefault((name, batch_size_of(batch)), batch)
        found = self._joint.compute(name, batch, index)
        self._joint.record(found)
        return found

    @contextmanager
    def _giving_up(self) -> Iterator[None]:
        """End the unit if steps turn out not to run as one: raise DiffersError in place of NotJointError."""
        try:
            yield
        except NotJointError as error:
            self._apart(self.members)
            for member in self.members:
                member.is_joint = False
            raise DiffersError(f"their steps can't run as one: {error}") from error

    def _forward(self, x: torch.Tensor | None) -> torch.Tensor:
        expected = self._reading.parts[MODEL].x
        alike = x is not None and x.shape[1:] == expected.shape[1:] and x.dtype == expected.dtype
        if x is None or not alike or x.ndim != expected.ndim or x.device != expected.device:
            raise NotJointError("its model reads other inputs than in its first step")
        training = self._parts[self.members[0]].modules[MODEL].training
        self._outputs.append(self._merged[MODEL](x, training, call=len(self._outputs) + 1))
        return self._outputs[-1].clone()  # a step may write into it

    def _backpropagate_rows(self, losses: torch.Tensor) -> None:
        if not losses.requires_grad:
            raise NotJointError("its loss does not depend on its model")
        reached = {row for row, member in enumerate(self._rows) if member in self.members}
        self._reached = {MODEL: reached}
        weights = [float(row in reached) for row in range(len(self._rows))]
        losses.backward(losses.new_tensor(weights))

    def _check_validation(self, twin: Member, batch: Any, index: int) -> None:
        """Raise NotJointError if a member's own code logs something else for the same output of its model."""
        member = self.members[0]
        mine = iter([outputs[self.row_of(member)].clone() for outputs in self._outputs])
        twin.module.__dict__[MODEL] = lambda x: next(mine)
        try:
            with twin.rng:
                twin.call_step(VALIDATION, copied(batch), index)
            logged = twin.logged()
            same = _is_close(logged, {name: sums for name, sums in member.logged().items() if name in logged})
            same &= _is_close(metric_states(twin.module), metric_states(member.module))
        except (Exception, SystemExit) as error:  # of the member's own code, which fails again by itself
            raise NotJointError(f"{type(error).__name__}: {error}") from error
        if not same:
            raise NotJointError("validation logs something else")
        self._is_validation_checked = True

    # --- rows that are dropped ---

    def _build(self) -> None:
        super()._build()
        self._joint = JointSteps(self._rows, self._forward, begin=self._outputs.clear, present=lambda: self.members)

    def _probe(self) -> list[dict[Any, torch.Tensor]]:
        found = []
        for (name, _), batch in self._batches.items():
            with self._unchanged(), self._as_in_training(self._reading.device), self._trying():
                found.append(self._probe_step(name, batch))
        self._joint.discard()
        return found

    def _probe_step(self, name: str, batch: Any) -> dict[Any, torch.Tensor]:
        """Return numbers by member, and in training gradients by parameter."""
        self._optimizer.zero_grad()
        with torch.set_grad_enabled(name == TRAINING):
            step = self._joint.compute(name, batch, 0)
        found: dict[Any, torch.Tensor] = {member: step.of_row(row) for row, member in enumerate(self._rows)}
        if name == TRAINING and step.losses is not None:
            step.losses.backward(torch.ones_like(step.losses))
            found |= self._take_gradients(self._merged[MODEL])
        return found


def _is_close(own: Any, joint: Any) -> bool:
    """Whether nested numbers differ by no more than rounding."""
    if isinstance(own, dict):
        return own.keys() == joint.keys() and all(_is_close(own[key], joint[key]) for key in own)
    if isinstance(own, list):
        return len(own) == len(joint) and all(map(_is_close, own, joint))
    one, other = (torch.as_tensor(value, dtype=torch.float64) for value in (own, joint))
    return torch.allclose(one, other, rtol=1e-4, atol=1e-6, equal_nan=True)
