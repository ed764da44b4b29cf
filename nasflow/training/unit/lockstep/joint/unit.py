"""A unit of LightningModules whose steps run once for all members."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from nasflow.errors import InfrastructureError
from nasflow.training.member.batches import copied
from nasflow.training.member.member import Member
from nasflow.training.member.metrics.metric_log import batch_size_of
from nasflow.training.member.metrics.metric_states import metric_states
from nasflow.training.unit.base import DiffersError
from nasflow.training.unit.lockstep.joint.computed import Computed
from nasflow.training.unit.lockstep.joint.looking import NotRecordableError
from nasflow.training.unit.lockstep.joint.recorded import Recording
from nasflow.training.unit.lockstep.joint.recordings import Recordings
from nasflow.training.unit.lockstep.joint.steps import TRAINING, VALIDATION, JointSteps
from nasflow.training.unit.lockstep.joint.view import NotJointError
from nasflow.training.unit.lockstep.reading import MODEL
from nasflow.training.unit.lockstep.unit import LockstepUnit

_MOST_SEEN = 4
_NEAR = {True: {"rtol": 1e-5, "atol": 1e-7}, False: {"rtol": 1e-4, "atol": 1e-6}}


class JointUnit(LockstepUnit):
    """As a LockstepUnit, for steps that compute the same for every member from the output of its model.

    A step that turns out to be none ends the unit; its members train the epoch again, step by step.

    Args:
        apart: called with members whose steps can't run as one, before a DiffersError is raised.
        recordings: of the steps of all units of the job.
    """

    can_wait = True

    def __init__(self, *args: Any, apart: Callable[[Sequence[Member]], None], recordings: Recordings, **options: Any):
        self._apart, self._recordings = apart, recordings
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
            self._refuse(self._watch.moved(self.members))
        began = time.perf_counter()
        self._optimizer.zero_grad()
        with self._giving_up():
            found = self._compute(TRAINING, batch, index, lambda losses: self._drop_not_finite(losses, index))
            self._joint.record(found)
            self._blame(TRAINING, batch, index)
        self._optimizer.step(self._idle(()) if found.losses is None else set())
        for member in self.members:
            member.fitting.count_step()
        self._end_steps(index + 1)
        self._averages.update()
        self._seconds += time.perf_counter() - began

    def validate_batch(self, batch: Any, index: int) -> None:
        """Score every member."""
        if index == 0:
            self._refuse(self._watch.training(self.members))
        began = time.perf_counter()
        first = self.members[0]
        twin = None if self._is_validation_checked else first.twin()
        with self._giving_up():
            self._joint.record(self._compute(VALIDATION, batch, index))
            self._blame(VALIDATION, batch, index)
            if twin is not None and first in self.members:
                self._check_validation(twin, batch, index)
        self._seconds += time.perf_counter() - began

    def _try_losses(self, batch: Any, index: int) -> dict[Member, torch.Tensor]:
        found = self._compute(TRAINING, batch, index)
        if failed := self._joint.failed():
            raise NotJointError(f"a metric fails: {next(iter(failed.values()))}")
        self._joint.record(found)
        return {} if found.losses is None else dict(zip(self._rows, found.losses.unbind(), strict=True))

    def _compute(
        self, name: str, batch: Any, index: int, check: Callable[[torch.Tensor], None] = lambda losses: None
    ) -> Computed:
        """Run the members' steps, and set gradients in training.

        Args:
            check: called with the losses `[n]` before their backward.
        """
        if len(self._batches) < _MOST_SEEN:
            self._batches.setdefault((name, batch_size_of(batch)), batch)
        recording = self._joint.recording(name, batch, index, partial(self._learn, name, batch, index))
        if recording is not None:
            return self._replay(recording, name, batch, check)
        found = self._joint.compute(name, batch, index)
        if name == TRAINING:
            self._reach(found.losses)
            if found.losses is not None:
                check(found.losses)
                self._backpropagate_rows(found.losses)
        return found

    def _replay(self, recording: Recording, name: str, batch: Any, check: Callable[[torch.Tensor], None]) -> Computed:
        """Run the members' steps as recorded."""
        x, model = recording.model_reads(batch), self._merged[MODEL]
        found: list[Computed] = []

        def losses_of(outputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            self._outputs[:] = [outputs]
            found.append(self._joint.replay(recording, outputs, batch))
            losses, gradients = found[0].losses, found[0].gradients
            assert losses is not None and gradients is not None  # noqa: S101 - steps without them are not recorded
            check(losses)
            return losses, gradients

        if name == TRAINING:
            model.backpropagate(x, losses_of)
            self._reach(found[0].losses)
        else:
            self._outputs[:] = [model(x, False)]
            found.append(self._joint.replay(recording, self._outputs[0], batch))
        return found[0]

    def _learn(self, name: str, batch: Any, index: int) -> Recording:
        """Record the members' steps, and compare them with those that are recorded; nothing changes otherwise.

        Raises:
            NotRecordableError: they can't be recorded.
        """
        joint = self._new_joint()  # metrics of the other one would be updated
        with self._unchanged(), self._trying():
            found = joint.compute(name, batch, index)
            if len(self._outputs) != 1 or (found.losses is None) == (name == TRAINING):
                raise NotRecordableError("it has no loss, or does not call its model once")
            (outputs,) = self._outputs
            if found.losses is not None:
                (gradients,) = torch.autograd.grad(found.losses.sum(), outputs)
                found = replace(found, gradients=gradients)
        with torch.inference_mode(False), torch.set_grad_enabled(name == TRAINING):
            recording = joint.trace(name, batch, index, outputs.detach())
        again = joint.replay(recording, outputs.detach(), batch)
        if not all(_is_near(*pair) for pair in zip(found.tensors(), again.tensors(), strict=True)):
            raise NotRecordableError("run again, it computes something else")
        return recording

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

    def _reach(self, losses: torch.Tensor | None) -> None:
        """Note which rows get gradients."""
        present = [] if losses is None else self.members
        self._reached = {MODEL: {row for row, member in enumerate(self._rows) if member in present}}

    def _backpropagate_rows(self, losses: torch.Tensor) -> None:
        if not losses.requires_grad:
            raise NotJointError("its loss does not depend on its model")
        losses.backward(losses.new_tensor([float(member in self.members) for member in self._rows]))

    def _check_validation(self, twin: Member, batch: Any, index: int) -> None:
        """Raise NotJointError if a member's own code logs something else for the same output of its model."""
        member = self.members[0]
        try:
            self._call_own(twin, self.row_of(member), VALIDATION, batch, index)
            logged = twin.book.sums()
            same = _is_close(logged, {name: sums for name, sums in member.book.sums().items() if name in logged})
            same &= _is_close(metric_states(twin.module), metric_states(member.module))
        except (Exception, SystemExit) as error:  # of the member's own code, which fails again by itself
            raise NotJointError(f"{type(error).__name__}: {error}") from error
        if not same:
            raise NotJointError("validation logs something else")
        self._is_validation_checked = True

    def _blame(self, name: str, batch: Any, index: int) -> None:
        """Report the members whose metrics failed in the last step, if their own code fails as well.

        Raises:
            NotJointError: a member's own code does not fail.
        """
        for row in self._joint.failed():
            member = self._rows[row]
            try:
                self._call_own(member.twin(), row, name, batch, index)
            except InfrastructureError:
                raise
            except (Exception, SystemExit) as error:
                self._failed(member, error)
            else:
                raise NotJointError("a metric fails that does not fail alone")

    def _call_own(self, twin: Member, row: int, name: str, batch: Any, index: int) -> None:
        """Run a step of a member's own code on the outputs of its model in the last step."""
        mine = iter([outputs[row].detach().clone() for outputs in self._outputs])
        twin.module.__dict__[MODEL] = lambda x: next(mine)
        with twin.rng:
            twin.call_step(name, copied(batch), index)

    # --- rows that are dropped ---

    def _build(self) -> None:
        super()._build()
        self._joint = self._new_joint()

    def _new_joint(self) -> JointSteps:
        return JointSteps(
            self._rows,
            self._forward,
            begin=self._outputs.clear,
            recordings=self._recordings,
            outputs=str(self._merged[MODEL].plan.outputs[0].node.spec),
            present=lambda: self.members,
        )

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
            step = self._compute(name, batch, 0)
        found: dict[Any, torch.Tensor] = {member: step.of_row(row) for row, member in enumerate(self._rows)}
        if name == TRAINING and step.losses is not None:
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


def _is_near(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether numbers differ by no more than rounding of one operation in another order."""
    precise = one.dtype is torch.float64 and other.dtype is torch.float64
    return torch.allclose(one.double(), other.double(), **_NEAR[precise], equal_nan=True)
