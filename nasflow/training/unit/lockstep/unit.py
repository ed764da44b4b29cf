"""A unit of LightningModules: their steps run as written, their models, backward and optimizers as one."""

import time
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import nn

from nasflow.merge.run.merged_model import MergedModel
from nasflow.training.member.hooks import GRADIENT_HOOKS, EndsEpochError
from nasflow.training.member.member import Member
from nasflow.training.member.own_step import loss_in
from nasflow.training.optim.stacked import Stack
from nasflow.training.unit.base import DiffersError, guarding
from nasflow.training.unit.lockstep.gradients import shown
from nasflow.training.unit.lockstep.hub import run_in_lockstep
from nasflow.training.unit.lockstep.pausing import (
    MODEL,
    Call,
    InnerBackwardError,
    PausingStep,
    proxied,
    refusing_inner_backward,
)
from nasflow.training.unit.lockstep.reading import HandedBatch, Reading
from nasflow.training.unit.member_step import Step, Subject
from nasflow.training.unit.stacked_unit import Merge, StackedUnit

INNER_BACKWARD = "it runs a backward through the model in its step"
CHANGES = "it changes which parameters are trained, or puts other tensors in their place"
ENDS_EPOCH = "its on_train_batch_start ends an epoch early"

_MOST_SEEN = 4

Compare = Callable[["LockstepUnit", Any], None]


class LockstepUnit(StackedUnit):
    """Members with a LightningModule of the user each.

    Args:
        merge: as of every stacked unit, of several members.
        reading: what their models read.
        note: called with members that can't be fused any more, and why, before a DiffersError is raised.
        compare: called with the unit and the first batch of every epoch, before the step; raises DiffersError.

    Attributes:
        wrong: members that can't be fused, and why, found in steps that were only tried.
    """

    def __init__(
        self,
        members: list[Member],
        failed: Callable[[Member, BaseException], None],
        merge: Merge,
        *,
        reading: Reading,
        note: Callable[[Mapping[Member, str]], None],
        compare: Compare | None = None,
    ):
        self._reading, self._note, self._compare = reading, note, compare
        self._models: dict[Member, nn.Module] = {member: member.module._modules[MODEL] for member in members}  # type: ignore[misc]
        self._seen: dict[tuple[bool, bool, torch.Size], tuple[list[Member], torch.Tensor]] = {}
        self._handed: dict[Member, HandedBatch] = {}
        self._calls = 0  # of the merged model in this step
        self._reached: set[int] = set()  # rows that got a gradient in this step
        self.wrong: dict[Member, str] = {}
        super().__init__(members, failed, merge)

    def train_batch(self, batch: Any, index: int) -> None:
        """Make one step of every member."""
        if index == 0 and self._compare is not None:
            self._compare(self, batch)
        began = time.perf_counter()
        self._refuse_changes()
        self._optimizer.zero_grad()
        outputs = self._run("training_step", batch, index)
        losses = self._losses(outputs, index)
        self._call_hooks("on_before_backward", losses)
        self._backpropagate({member: loss for member, loss in losses.items() if member in self.members})
        self._step_all(losses)
        self._end_steps(index + 1)
        for member in [member for member in outputs if member in self.members]:
            with guarding(member, self._fail), member.rng if member.hooks.names else nullcontext():
                member.end_step(outputs[member], index)
        self._seconds += time.perf_counter() - began

    def validate_batch(self, batch: Any, index: int) -> None:
        """Score every member."""
        began = time.perf_counter()
        self._run("validation_step", batch, index)
        self._seconds += time.perf_counter() - began

    def stop_within(self) -> None:
        """Give each member an equal share of the time; they have logged for themselves."""
        for member in self.members:
            member.add_seconds(self._seconds / len(self.members))

    def close_epoch(self) -> None:
        """Give each member an equal share of the time; they have logged for themselves."""
        share = self._seconds / max(1, len(self.members))
        for member, is_finite in zip(self._rows, self._are_finite(), strict=True):
            if member in self.members:
                member.note({}, share, is_finite)
        self._seconds = 0.0

    def try_step(self, batch: Any, index: int) -> dict[Member, Step]:
        """Compute a step without making it; all else advances as in a real one. Members that fail are left out."""
        self._optimizer.zero_grad()
        with self._trying() as failing:
            losses = self._losses(self._run("training_step", batch, index), index)
            self._backpropagate(losses)
        idle = self._idle(losses)
        found: dict[nn.Parameter, torch.Tensor | None] = {}
        for stack in self._stacks:
            grad = stack.tensor.grad
            for row, parameter in enumerate(stack.parameters):
                its = grad if grad is None or not stack.rows else grad[row].clone()
                found[parameter] = None if parameter in idle else its
        self._optimizer.zero_grad()
        tried = [member for member in self.members if member not in failing and member not in self.wrong]
        none = torch.zeros(())
        return {member: whole_step(member, losses.get(member, none).detach(), found) for member in tried}

    def _step_all(self, losses: Mapping[Member, torch.Tensor]) -> None:
        idle = self._idle(losses)
        watching = [member for member in self.members if not member.hooks.names.isdisjoint(GRADIENT_HOOKS[1:])]
        if watching:
            with shown([pair for member in watching for pair in self._stacked[member]], idle):
                self._call_hooks("on_after_backward", dict.fromkeys(losses))
                optimizers = {member: member.fitting.optimizer for member in self.members}
                self._call_hooks("on_before_optimizer_step", optimizers)
        self._refresh()
        self._optimizer.step(idle)
        for member in self.members:
            member.fitting.count_step()

    # --- the members' own code ---

    def _call_hooks(self, name: str, about: Mapping[Member, Any]) -> None:
        """Call a hook of the members that override it, each with what it is about, if that is not None."""
        for member, thing in list(about.items()):
            if member in self.members:
                with guarding(member, self._fail):
                    member.call_hook(name, *([] if thing is None else [thing]))

    def _run(self, name: str, batch: Any, index: int) -> dict[Member, Any]:
        """Return what the members' steps return, by member."""
        self._calls = 0
        self._reached.clear()
        self._handed = {member: HandedBatch(batch) for member in self.members}
        steps = {
            member: PausingStep(
                partial(member.call_step, name, handed.values, index), partial(self._reading.fits, batch=handed)
            )
            for member, handed in self._handed.items()
        }
        with ExitStack() as stack:
            stack.enter_context(refusing_inner_backward())
            for member in steps:
                stack.enter_context(proxied(member.module, self._models[member]))
            outcomes = run_in_lockstep(steps, self._within, self._answer)
        self._handed = {}
        self._refuse_wrong()
        return {member: outcome for member, outcome in outcomes.items() if member in self.members}

    @contextmanager
    def _within(self, member: Member) -> Iterator[None]:
        with guarding(member, self._fail), member.rng:
            yield

    def _fail(self, member: Member, error: BaseException) -> None:
        if isinstance(error, InnerBackwardError | EndsEpochError):
            self.wrong[member] = INNER_BACKWARD if isinstance(error, InnerBackwardError) else ENDS_EPOCH
        elif self.wrong and self._failing is None:
            return  # all train this epoch again, and those that fail by themselves fail then
        elif self._failing is not None:
            self._failing.add(member)
        elif member in self.members:
            self._failed(member, error)

    def _losses(self, outputs: Mapping[Member, Any], index: int) -> dict[Member, torch.Tensor]:
        """Return the losses of the members that have one; those that can't be backpropagated are their failures."""
        losses: dict[Member, torch.Tensor] = {}
        for member, output in outputs.items():
            with guarding(member, self._fail):
                if (loss := loss_in(output)) is not None:
                    losses[member] = loss
        plain = [loss for loss in losses.values() if isinstance(loss, torch.Tensor) and loss.ndim == 0]
        if len(plain) < len(losses) or (plain and not torch.stack(plain).isfinite().all()):
            for member, loss in list(losses.items()):
                del losses[member]
                with guarding(member, self._fail):
                    member.check_loss(loss, index)
                    losses[member] = loss
        for member in [member for member, loss in losses.items() if not loss.requires_grad or loss.numel() != 1]:
            with guarding(member, self._fail):
                losses.pop(member).backward()  # raises what it raises for the member by itself
        return losses

    # --- what is fused ---

    def _answer(self, calls: dict[Member, Call]) -> dict[Member, torch.Tensor]:
        """Return the outputs of the members' models for what each reads."""
        alike: dict[Hashable, dict[Member, Call]] = {}
        for member, call in calls.items():
            place = self._handed[member].place_of(call.x) if self._reading.shared else None
            alike.setdefault((call.grad, call.training, call.x.shape, place), {})[member] = call
        answers: dict[Member, torch.Tensor] = {}
        for group in alike.values():
            answers |= self._answer_alike(group)
        return {member: output for member, output in answers.items() if member in self.members}

    def _answer_alike(self, calls: Mapping[Member, Call]) -> dict[Member, torch.Tensor]:
        first = next(iter(calls.values()))
        x = first.x.detach()
        if not self._reading.shared:
            x = torch.stack([calls[member].x if member in calls else x for member in self._rows])
        self._see(first, x.detach())
        self._calls += 1
        with ExitStack() as stack:
            for member in self.members:
                if member not in calls:
                    stack.enter_context(self._subject(member).unchanged())
            stack.enter_context(torch.set_grad_enabled(first.grad))
            outputs = self._merged(x, first.training, call=self._calls)
            handed = _HandOut.apply(outputs, self) if outputs.requires_grad else outputs.unbind(0)  # type: ignore[no-untyped-call]
        return {member: handed[self.row_of(member)] for member in calls}

    def _backpropagate(self, losses: Mapping[Member, torch.Tensor]) -> None:
        if losses:
            torch.autograd.backward(list(losses.values()))

    def reach(self, rows: Sequence[int]) -> None:
        """Note the rows that the backward reaches."""
        self._reached.update(rows)

    def _idle(self, losses: Collection[Member]) -> set[nn.Parameter]:
        """Collect gradients of the members' own parameters; return parameters in stacks that have no gradient.

        Where a backward does not reach a member's row, the merged model gives zeros in place of no gradient.
        """
        idle: set[nn.Parameter] = set()
        for member in self.members:
            if self.row_of(member) in self._reached:
                continue
            for parameter, stack in self._stacked[member]:
                if stack.rows and parameter.grad is None:
                    idle.add(parameter)
                elif not stack.rows and (member not in losses or not _is_any(parameter.grad)):
                    parameter.grad = None
        self._collect_own_gradients()
        return idle

    @property
    def _merged(self) -> MergedModel:
        assert isinstance(self._model, MergedModel)  # noqa: S101 - of several members
        return self._model

    def _subject(self, member: Member) -> Subject:
        return Subject(member, self._merged.plan.graphs[self.row_of(member)])

    # --- what may change under way ---

    def _build(self) -> None:
        super()._build()
        self._has_opaque = True  # a loss may have terms of the parameters themselves
        self._stacked: dict[Member, list[tuple[nn.Parameter, Stack]]] = {member: [] for member in self._rows}
        for stack in self._stacks:
            for parameter, row in zip(stack.parameters, stack.members, strict=True):
                self._stacked[self._rows[row]].append((parameter, stack))
        self._places = {member: _places(parameters) for member, parameters in self._stacked.items()}
        self._stepped = {member: _stepped(member) for member in self._rows}
        self._set = {member: _hyper_parameters(member) for member in self._rows}

    def _refuse_changes(self) -> None:
        """Raise DiffersError if a member's own code has changed what the stacks rely on."""
        for member in self.members:
            same = _places(self._stacked[member]) == self._places[member]
            if not same or _stepped(member) != self._stepped[member]:
                self.wrong[member] = CHANGES
        self._refuse_wrong()

    def _refresh(self) -> None:
        """Read what a step has changed in its optimizer, such as a learning rate that it sets by itself."""
        now = {member: _hyper_parameters(member) for member in self.members}
        if any(self._set.get(member) != values for member, values in now.items()):
            self._optimizer.refresh()
            self._set = now

    def _refuse_wrong(self) -> None:
        """Raise DiffersError if a member can't be fused any more."""
        if self.wrong and self._failing is None:
            wrong, self.wrong = self.wrong, {}
            self._note(wrong)
            raise DiffersError("; ".join(f"trial {member.trial}: {what}" for member, what in wrong.items()))

    # --- rows that are dropped ---

    def _see(self, call: Call, x: torch.Tensor) -> None:
        """Keep an input of each of the first few forms to probe with: kernels may round other sizes differently."""
        if len(self._seen) < _MOST_SEEN:
            rows = [] if self._reading.shared else list(self._rows)
            self._seen.setdefault((call.training, call.grad, call.x.shape), (rows, x))
        self._note_cast(x.device)

    def _probe(self) -> list[dict[Any, torch.Tensor]]:
        found = []
        for (training, grad, _), (rows, seen) in self._seen.items():
            x = seen[[rows.index(member) for member in self._rows]] if rows else seen
            with self._unchanged(), self._as_in_training(x.device), self._trying():
                found.append(self._probe_on(x, training, grad))
        return found

    def _probe_on(self, x: torch.Tensor, training: bool, grad: bool) -> dict[Any, torch.Tensor]:
        """Return outputs by member, and with `grad` gradients by parameter, of half the sum of the outputs' squares."""
        if not grad:
            with torch.no_grad():
                return dict(zip(self._rows, self._merged(x, training).clone(), strict=True))
        self._optimizer.zero_grad()
        with torch.enable_grad():
            outputs = self._merged(x, training)
            outputs.backward(outputs.detach())
        found: dict[Any, torch.Tensor] = dict(zip(self._rows, outputs.detach().clone(), strict=True))
        for stack in self._model.stacks:
            if stack.tensor.grad is not None:
                found |= dict(zip(stack.parameters, stack.tensor.grad.clone(), strict=True))
        self._collect_own_gradients()
        self._optimizer.zero_grad()
        return found


def whole_step(member: Member, loss: torch.Tensor, gradients: Mapping[nn.Parameter, torch.Tensor | None]) -> Step:
    """Return what a member's step has computed and changed, with the gradients of all its parameters."""
    trained = {name: parameter for name, parameter in member.module.named_parameters() if parameter.requires_grad}
    changed = {name: buffer.detach().clone() for name, buffer in member.module.named_buffers()}
    for name, (total, weight) in member.logged().items():
        changed[f"its logged '{name}'"] = torch.tensor([total, weight], dtype=torch.float64)
    grads = {name: gradients.get(parameter) for name, parameter in trained.items()}
    return Step(loss, loss, grads, changed, member.rng.position())


def _is_any(grad: torch.Tensor | None) -> bool:
    return grad is not None and bool(grad.any())


def _places(stacked: Sequence[tuple[nn.Parameter, Stack]]) -> list[tuple[int, bool]]:
    """Where parameters are in memory, and whether they are trained."""
    return [(parameter.data_ptr(), parameter.requires_grad) for parameter, _ in stacked]


def _stepped(member: Member) -> list[int]:
    """The number of parameters in each group of a member's optimizer."""
    return [len(group["params"]) for group in member.fitting.optimizer.param_groups]


def _hyper_parameters(member: Member) -> list[list[Any]]:
    """The hyper-parameters of each group of a member's optimizer."""
    groups = member.fitting.optimizer.param_groups
    return [[value for name, value in group.items() if name != "params"] for group in groups]


class _HandOut(torch.autograd.Function):
    """Gives each member its output, which it may write into; the backward tells the unit whose have a gradient."""

    @staticmethod
    def forward(ctx: Any, outputs: torch.Tensor, unit: LockstepUnit) -> tuple[torch.Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.unit, ctx.form = unit, (outputs.shape, outputs.dtype, outputs.device)
        return tuple(row.clone() for row in outputs)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> tuple[torch.Tensor, None]:
        ctx.unit.reach([row for row, grad in enumerate(grads) if grad is not None])
        shape, dtype, device = ctx.form
        whole = torch.zeros(shape, dtype=dtype, device=device)
        for place, grad in zip(whole, grads, strict=True):
            if grad is not None:
                place.copy_(grad)
        return whole, None
