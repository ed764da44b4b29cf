"""A fused unit: one forward, one backward and one optimizer step for all its members."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import nn

from nasflow.errors import InfrastructureError, TrialError
from nasflow.evaluator.ready_made.group_metrics import SupervisedGroup
from nasflow.job import activity
from nasflow.merge.run.merged_model import MergedModel
from nasflow.merge.run.solo_model import DirectModel
from nasflow.merge.trace.graph import Graph
from nasflow.training.device.fault import refuse_fault
from nasflow.training.device.memory import free_failed, is_of_memory
from nasflow.training.member.member import Member
from nasflow.training.optim.stacked import Stack
from nasflow.training.unit.base import CutShortError, DiffersError, Note, reasons_of
from nasflow.training.unit.member_step import Subject, dense
from nasflow.training.unit.stacked_unit import Merge, StackedUnit
from nasflow.training.unit.step_graph import StepGraphs, recorder_on

_MOST_SEEN = 6


@dataclass(frozen=True)
class TriedStep:
    """The results of a step that was computed, but not made.

    Attributes:
        outputs: `[n, B, ...]`.
        losses: `[n]`.
        of_stacks: the gradient of each stack, None for one that got none.
        failed: members in which the member's own code raised.
    """

    outputs: torch.Tensor
    losses: torch.Tensor
    of_stacks: list[tuple[Stack, torch.Tensor | None]]
    failed: set[Member]

    @cached_property
    def gradients(self) -> dict[nn.Parameter, torch.Tensor | None]:
        """The gradients by parameter."""
        found: dict[nn.Parameter, torch.Tensor | None] = {}
        for stack, grad in self.of_stacks:
            if grad is None:
                found.update(dict.fromkeys(stack.parameters))
            else:
                found.update(zip(stack.parameters, grad if stack.rows else [grad], strict=True))
        return found

    def equals(self, other: "TriedStep") -> bool:
        """Whether the other step has the same bits."""
        grads = zip((grad for _, grad in self.of_stacks), (grad for _, grad in other.of_stacks), strict=True)
        pairs = [(self.outputs, other.outputs), (self.losses, other.losses), *grads]
        return all(a is b or (a is not None and b is not None and torch.equal(a, b)) for a, b in pairs)


class FusedUnit(StackedUnit):
    """Members with a ready-made evaluator: their losses and metrics are computed as one, too.

    Steps read nothing from the device: that waits until it is done. A member whose loss is not finite makes further
    steps, unread, until its losses are read at the end of a run. Where that could run a user's code on what it has
    become, or where steps wait in any case, they are read at once.

    Args:
        merge: as of every stacked unit.
        compare: called with the unit and the first batch of every epoch, before the step; raises DiffersError.
        captures: whether steps are captured, where the device can do that, and replayed.
        note: called with members that can't be fused any more, and why, before a DiffersError is raised.
    """

    can_wait = True

    def __init__(
        self,
        members: list[Member],
        failed: Callable[[Member, BaseException], None],
        merge: Merge,
        compare: Callable[["FusedUnit", Any], None] | None = None,
        captures: bool = False,
        *,
        note: Note = lambda wrong: None,
    ):
        self._note = note
        recorder = recorder_on(members[0].module.device) if captures else None
        self._graphs = None if recorder is None else StepGraphs(recorder)
        self._compare = compare
        self._unread: list[tuple[int, torch.Tensor]] = []  # of batches, the index and the losses
        self._uncounted = 0  # optimizer steps
        self._seen: dict[tuple[bool, torch.Size], tuple[torch.Tensor, torch.Tensor]] = {}
        super().__init__(members, failed, merge)

    @property
    def model(self) -> MergedModel | DirectModel:
        """The model that runs the unit now."""
        [model] = self._models.values()
        return model

    def start_epoch(self) -> None:
        """As for every stacked unit."""
        super().start_epoch()
        self._note_trained()

    def train_batch(self, batch: Any, index: int) -> None:
        """Make one step of every member.

        Raises:
            CutShortError: it failed by some members; those that are left have to make it again.
        """
        try:
            self._train_batch(batch, index)
        except Exception as error:
            if not self._is_of_members(error, lambda member, graph: Subject(member, graph).own_step(tuple(batch))):
                raise

    def _train_batch(self, batch: Any, index: int) -> None:
        if index == 0 and self._compare is not None:
            self._compare(self, batch)
        began = time.perf_counter()
        x, target = batch
        self._see(True, x, target)
        losses = self._step_on(x, target, index)
        if losses is None:
            return
        self._group.count(len(target))
        if self._reads_late:
            self._unread.append((index, losses))
        if self._pace.is_last(index):
            self._end_steps(index + 1)
        self._seconds += time.perf_counter() - began

    def _step_on(self, x: torch.Tensor, target: torch.Tensor, index: int) -> torch.Tensor | None:
        """Make a step, and return the losses `[n]`; None if the model has failed."""
        graphs = self._graphs
        if graphs is None or not self._reads_late or self._pace.accumulated > 1 or self._optimizer.form is None:
            return self._compute(x, target, index)
        form = (self._optimizer.form, self._cast, self._trained)
        if graph := graphs.find(form, x, target, self._capture):
            losses: torch.Tensor | None = graph.step(x, target)
        else:
            with graphs.plain_step(x, target):
                losses = self._launch(x, target)
        if losses is not None:
            self._optimizer.count_step()
            self._count_step()
        return losses

    def _capture(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        self._capturing = True
        try:
            losses = self._launch(x, target)
        finally:
            self._capturing = False
        assert losses is not None  # noqa: S101 - it raises what the model raises
        return losses

    def _launch(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor | None:
        """Launch the operations of a step, and count nothing."""
        counted = self._uncounted
        try:
            with self._optimizer.uncounted():
                return self._compute(x, target, 0)
        finally:
            self._uncounted = counted

    def _compute(self, x: torch.Tensor, target: torch.Tensor, index: int) -> torch.Tensor | None:
        """Make a step by its operations, and return the losses `[n]`; None if the model has failed."""
        self._clear_gradients(index)

        def losses_of(outputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            scales = self._loss_scales(outputs.device)
            losses, gradients = self._group.losses_and_gradients(outputs, target, scales)
            if not self._reads_late:
                self._drop_not_finite(losses, index)
            return losses, self._share(gradients) if scales is None else gradients

        losses = self.model.backpropagate(x, losses_of)
        if losses is None:
            return None
        if wrong := self._take_unreached():
            self._note(wrong)
            raise DiffersError(reasons_of(wrong))
        self._collect_own_gradients()
        if self._accumulate(index):
            self._step(x.device, self._unscale())
            self._averages.update()
        return losses

    def end_run(self) -> None:
        """Count the steps that were made, and report the members whose losses were not finite."""
        steps, self._uncounted = self._uncounted, 0
        for member in self.members if steps else ():
            member.fitting.count_step(steps)
        unread, self._unread = self._unread, []
        if unread and not torch.stack([losses for _, losses in unread]).isfinite().all():
            for index, losses in unread:
                self._drop_not_finite(losses, index)

    def pass_over(self, batch: Any, index: int) -> None:
        """Compare as on any first batch, and continue from what the members had logged."""
        if index == 0:
            if self._compare is not None:
                self._compare(self, batch)
            self._group.go_on([member.book.take("train_loss") for member in self._rows])
        self._see(True, *batch)

    def stop_within(self) -> None:
        """Give the members their sums of losses; each gets an equal share of the time."""
        sums = zip(self._rows, self._group.training_sums(), strict=True)
        for member, (total, samples) in sums:
            if member in self.members:
                member.give_sums({"train_loss": (total, samples)}, self._seconds / len(self.members))

    def try_step(self, x: torch.Tensor, target: torch.Tensor, taped: bool | None = None) -> TriedStep:
        """Compute a step without making it; buffers and random streams advance as in a real one.

        A member's failure is not reported: it fails again in the real step.

        Args:
            taped: as a merged model takes it; None for a step as in training, with scaled losses in half precision.
        """
        group = SupervisedGroup([member.module for member in self._rows])  # type: ignore[misc]
        seen: list[torch.Tensor] = []

        def losses_of(outputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            scales = self._loss_scales(outputs.device) if taped is None else None
            losses, gradients = group.losses_and_gradients(outputs, target, scales)
            seen[:] = [outputs.detach().clone(), losses.clone()]
            return losses, gradients

        self._optimizer.zero_grad()
        with self._trying() as failing:
            ran = self.model.backpropagate(x, losses_of, taped)
        if ran is None:
            raise RuntimeError("a model failed on a batch that it has seen")
        self._take_unreached()  # a step by itself shows them
        self._collect_own_gradients()
        # copies, because a tape writes to the same memory again
        grads = [(stack, None if stack.tensor.grad is None else stack.tensor.grad.clone()) for stack in self._stacks]
        self._optimizer.zero_grad()
        return TriedStep(seen[0], seen[1], grads, failing)

    def validate_batch(self, batch: Any, index: int) -> None:
        """Score every member. Raises CutShortError as `train_batch` does."""

        def own(member: Member, graph: Graph) -> None:
            with dense(member.module):
                member.validate_batch(batch, index)

        try:
            self._validate_batch(batch, index)
        except Exception as error:
            if not self._is_of_members(error, own):
                raise

    def _validate_batch(self, batch: Any, index: int) -> None:
        began = time.perf_counter()
        x, target = batch
        self._see(False, x, target)
        outputs = self.model(x, False)
        if outputs is None:
            return
        self._group.validate(outputs, target)
        self._seconds += time.perf_counter() - began

    def _is_of_members(self, error: Exception, own: Callable[[Member, Graph], object]) -> bool:
        """Whether the unit failed because members fail by themselves, too; these are reported, and no half is tried.

        Args:
            own: makes a member's step by its own model. All members are made anew afterwards, or have failed.

        Raises:
            CutShortError: others are left.
        """
        refuse_fault(error)
        model = self.model
        nobodys = isinstance(error, InfrastructureError | DiffersError) or is_of_memory(error)
        if nobodys or self.is_single or not isinstance(model, MergedModel):
            return False
        self.end_run()
        free_failed(error)
        found: dict[Member, BaseException] = {}
        for member, graph in zip(self._rows, model.plan.graphs, strict=True):
            try:
                with activity.running(member.trial):
                    if member in self.members:
                        own(member, graph)
            except (Exception, SystemExit) as reason:
                refuse_fault(reason)
                if not is_of_memory(reason):  # in which the others have a part
                    found[member] = reason
        for member, own_error in found.items():
            self._report(member, own_error)
        if found and self.members:
            raise CutShortError("a step failed by members that have left") from error
        return bool(found)

    def close(self) -> None:
        """Release the captured steps, which keep memory of the device."""
        if self._graphs is not None:
            self._graphs.clear()

    def close_epoch(self) -> None:
        """Give the members their losses and metrics; each gets an equal share of the time."""
        shares = self._seconds / max(1, len(self.members))
        finite = self._are_finite()
        try:
            validated = self._group.close_validation()
        except TrialError as error:  # of a metric of all of them
            for member in list(self.members):
                self._report(member, error)
            return
        logged = zip(self._rows, self._group.close_training(), validated, finite, strict=True)
        for member, training, validation, is_finite in logged:
            if member in self.members:
                member.note({**training, **validation}, shares, is_finite)
        self._seconds = 0.0

    def _see(self, training: bool, x: torch.Tensor, target: torch.Tensor) -> None:
        """Keep a batch of each of the first few sizes to probe with: kernels may round other sizes differently."""
        if len(self._seen) < _MOST_SEEN:
            self._seen.setdefault((training, x.shape), (x, target))
        self._note_cast(x.device)

    def _count_step(self) -> None:
        self._uncounted += 1

    def _build(self) -> None:
        super()._build()
        self._note_trained()
        self.close()
        own = any(member.module.own_loss is not None for member in self._rows)
        self._reads_late = not (own or self._scaled_rows or any(model.has_opaque for model in self._models.values()))
        self._group = SupervisedGroup([member.module for member in self._rows])  # type: ignore[misc]

    def _note_trained(self) -> None:
        self._trained = tuple(tensor.requires_grad for tensor in self.trained_tensors)

    def _probe(self) -> list[dict[Any, torch.Tensor]]:
        return [self._probe_on(*seen) for seen in self._seen.items()]

    def _probe_on(
        self, kind: tuple[bool, torch.Size], batch: tuple[torch.Tensor, torch.Tensor]
    ) -> dict[Any, torch.Tensor]:
        """Return outputs by member, and in training gradients by parameter; the members don't change."""
        with self._unchanged(), self._as_in_training(batch[0].device):
            if kind[0]:
                step = self.try_step(*batch)
                return {**dict(zip(self._rows, step.outputs, strict=True)), **_known(step.gradients)}
            with self._trying(), torch.no_grad():
                outputs = self.model(batch[0], False)
        if outputs is None:
            raise RuntimeError("a model failed on a batch that it has seen")
        return dict(zip(self._rows, outputs.clone(), strict=True))


def _known(gradients: dict[nn.Parameter, torch.Tensor | None]) -> dict[nn.Parameter, torch.Tensor]:
    return {parameter: grad for parameter, grad in gradients.items() if grad is not None}
