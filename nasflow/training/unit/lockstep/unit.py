"""A unit of LightningModules: their steps run as written, their models, backward and optimizers as one."""

import time
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import nn

from nasflow.autocast import without_casts
from nasflow.merge.run.merged_model import MergedModel
from nasflow.training.device.memory import is_of_memory
from nasflow.training.member.member import Member
from nasflow.training.member.own_step import loss_in
from nasflow.training.optim.stacked import Stack
from nasflow.training.unit.base import DiffersError, Note, guarding, reasons_of
from nasflow.training.unit.lockstep.gradients import shown
from nasflow.training.unit.lockstep.hub import run_in_lockstep
from nasflow.training.unit.lockstep.meeting import Meeting
from nasflow.training.unit.lockstep.member_state import frozen, has_own_code, hyper_parameters, is_any, whole_step
from nasflow.training.unit.lockstep.parts import Form, Parts
from nasflow.training.unit.lockstep.pausing import Call, PausingStep, refusing_inner_backward
from nasflow.training.unit.lockstep.proxy import proxied
from nasflow.training.unit.lockstep.reading import HandedBatch, Reading
from nasflow.training.unit.lockstep.watch import Watch, reason_of
from nasflow.training.unit.member_step import Step, Subject
from nasflow.training.unit.stacked_unit import Merge, StackedUnit

_MOST_SEEN = 4

Compare = Callable[["LockstepUnit", Any], None]


class LockstepUnit(StackedUnit):
    """Members with a LightningModule of the user each.

    Args:
        merge: as of every stacked unit, of several members; a model for each part.
        reading: what the parts of their models read.
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
        note: Note,
        compare: Compare | None = None,
    ):
        self._reading, self._note, self._compare = reading, note, compare
        self._parts = {member: Parts(member.module, reading.parts) for member in members}
        self._seen: dict[Form, tuple[list[Member], torch.Tensor]] = {}
        self._handed: dict[Member, HandedBatch] = {}
        self._calls: Counter[str] = Counter()  # of each part in this step
        self._reached: dict[str, set[int]] = {}  # rows of a part that got a gradient in this step
        self._idle_so_far: set[nn.Parameter] = set()  # those without a gradient in all batches of this step
        self.wrong: dict[Member, str] = {}
        self._watch = Watch()
        super().__init__(members, failed, merge)
        for member in members:
            graphs = [model.plan.graphs[self.row_of(member)] for model in self._merged.values()]
            self._watch.note_layers(member, self._parts[member].modules.values(), graphs)

    def start_epoch(self) -> None:
        """Drop the rows of members that left, and read what schedules and hooks changed between epochs."""
        watched = filter(has_own_code, self.members)
        self._refuse(self._watch.changed(watched) | self._watch.moved(self.members))
        super().start_epoch()

    def train_batch(self, batch: Any, index: int) -> None:
        """Make one step of every member."""
        if index == 0 and self._compare is not None:
            self._compare(self, batch)
        began = time.perf_counter()
        self._refuse(self._watch.moved(self.members))
        self._clear_gradients(index)
        outputs = self._run("training_step", batch, index)
        losses = {m: m.fitting.scaled(self._share(loss)) for m, loss in self._losses(outputs, index).items()}
        self._call_hooks("on_before_backward", losses)
        self._backpropagate({member: loss for member, loss in losses.items() if member in self.members})
        stepped = self._step_all(losses, index)
        if stepped:
            self._end_steps(index + 1)
        self._call_last_hooks(outputs, index)
        if stepped:
            self._averages.update()
        self._seconds += time.perf_counter() - began

    def validate_batch(self, batch: Any, index: int) -> None:
        """Score every member."""
        if index == 0:
            self._refuse(self._watch.training(self.members) | self._watch.moved(self.members))
        began = time.perf_counter()
        self._run("validation_step", batch, index)
        self._seconds += time.perf_counter() - began

    def stop_within(self) -> None:
        """Give each member an equal share of the time; they have logged for themselves."""
        for member in self.members:
            member.add_seconds(self._seconds / len(self.members))

    def close_epoch(self) -> None:
        """Give each member an equal share of the time; they have logged for themselves."""
        watched = [member for member in self.members if has_own_code(member) or not member.is_joint]
        self._refuse(self._watch.changed(watched) | self._watch.moved(self.members))
        share = self._seconds / max(1, len(self.members))
        for member, is_finite in zip(self._rows, self._are_finite(), strict=True):
            if member in self.members:
                member.note({}, share, is_finite)
        self._seconds = 0.0

    def try_step(self, batch: Any, index: int) -> dict[Member, Step]:
        """Compute a step without making it; all else advances as in a real one. Members that fail are left out."""
        self._optimizer.zero_grad()
        with self._trying() as failing:
            losses = self._try_losses(batch, index)
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

    def _try_losses(self, batch: Any, index: int) -> dict[Member, torch.Tensor]:
        """Return the members' losses, and set their gradients."""
        losses = self._losses(self._run("training_step", batch, index), index)
        self._backpropagate(losses)
        return losses

    def _step_all(self, losses: Mapping[Member, torch.Tensor], index: int) -> bool:
        """Step the optimizers, if the batch is the last of a step."""
        idle = self._idle(losses)
        is_last = self._accumulate(index)
        self._idle_so_far = idle = idle if self._pace.is_first(index) else idle & self._idle_so_far
        self._show_gradients("on_after_backward", dict.fromkeys(losses), idle)
        if not is_last:
            return False
        overflows = self._unscale(idle)
        optimizers = {member: member.fitting.optimizer for member in self.members}
        self._show_gradients("on_before_optimizer_step", optimizers, idle)
        self._refresh()
        self._optimizer.keeps_gradients = any("on_train_batch_end" in member.hooks.names for member in self.members)
        self._step(self._reading.device, overflows, idle)
        return True

    def _show_gradients(self, hook: str, about: Mapping[Member, Any], idle: set[nn.Parameter]) -> None:
        """Call a hook of the members that override it with their gradients in place, which it may change."""
        watching = [member for member in self.members if hook in member.hooks.names]
        if watching:
            with shown([pair for member in watching for pair in self._stacked[member]], idle):
                self._call_hooks(hook, about)

    def _call_last_hooks(self, outputs: Mapping[Member, Any], index: int) -> None:
        """Call the hooks after a batch with the gradients in place, which Lightning keeps until the next batch."""
        ending = [member for member in outputs if member in self.members]
        watching = [member for member in ending if "on_train_batch_end" in member.hooks.names]
        with shown([pair for member in watching for pair in self._stacked[member]], {*self._idle_so_far}):
            for member in ending:
                with guarding(member, self._fail), member.rng if member.hooks.names else nullcontext():
                    member.end_step(outputs[member], index)

    # --- the members' own code ---

    def _call_hooks(self, name: str, about: Mapping[Member, Any]) -> None:
        """Call a hook of the members that override it, each with what it is about, if that is not None."""
        for member, thing in list(about.items()):
            if member in self.members:
                with guarding(member, self._fail), without_casts(self._reading.device.type):
                    member.call_hook(name, *([] if thing is None else [thing]))

    def _run(self, name: str, batch: Any, index: int) -> dict[Member, Any]:
        """Return what the members' steps return, by member."""
        self._calls.clear()
        self._reached = {path: set() for path in self._reading.parts}
        self._handed = {member: HandedBatch(batch) for member in self.members}
        steps = {
            member: PausingStep(
                partial(member.call_step, name, handed.values, index),
                partial(self._fits, member, handed),
                self._parts[member].opens,
            )
            for member, handed in self._handed.items()
        }
        with ExitStack() as stack:
            stack.enter_context(refusing_inner_backward())
            for member in steps:
                stack.enter_context(proxied(member.module, self._parts[member].names))
            outcomes = run_in_lockstep(steps, self._within, self._answer)
        self._handed = {}
        self._refuse_wrong()
        return {member: outcome for member, outcome in outcomes.items() if member in self.members}

    @contextmanager
    def _within(self, member: Member) -> Iterator[None]:
        with guarding(member, self._fail), member.rng:
            yield

    def _fail(self, member: Member, error: BaseException) -> None:
        if is_of_memory(error) and not self.is_single and self._failing is None:
            raise error  # all have filled the memory, whichever asks for more
        if reason := reason_of(error):
            self.wrong[member] = reason
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
        plain = [loss for loss in losses.values() if loss.ndim == 0]
        if len(plain) < len(losses) or (plain and not torch.stack(plain).isfinite().all()):
            for member, loss in list(losses.items()):
                del losses[member]
                with guarding(member, self._fail):
                    member.check_loss(loss, index)
                    losses[member] = loss
        for member in [member for member, loss in losses.items() if not loss.requires_grad]:
            with guarding(member, self._fail):
                member.check_loss(losses.pop(member), index)  # raises what it raises for the member by itself
        return losses

    # --- what is fused ---

    def _fits(self, member: Member, handed: HandedBatch, call: Call) -> bool:
        path = self._parts[member].path_of(call.module)
        fits = path is not None and self._reading.parts[path].fits(call, handed)
        fits = fits and (call.training or self._watch.is_evaluated(call.module))
        return fits and self._watch.is_in_place(call.module, where_too=not call.grad)

    def _answer(self, calls: dict[Member, Call]) -> dict[Member, torch.Tensor]:
        """Return the outputs of the parts of the members' models for what each reads."""
        alike: dict[tuple[str, Hashable], dict[Member, Call]] = {}
        for member, call in calls.items():
            path = self._parts[member].path_of(call.module)
            assert path is not None  # noqa: S101 - it fits
            place = self._handed[member].place_of(call.x) if self._reading.parts[path].shared else None
            key = (call.grad, call.training, call.x.shape, call.x.requires_grad, place)
            alike.setdefault((path, key), {})[member] = call
        answers: dict[Member, torch.Tensor] = {}
        for (path, _), group in alike.items():
            answers |= self._answer_alike(path, group)
        return {member: output for member, output in answers.items() if member in self.members}

    def _answer_alike(self, path: str, calls: Mapping[Member, Call]) -> dict[Member, torch.Tensor]:
        first, model = next(iter(calls.values())), self._merged[path]
        x, meeting = first.x.detach(), Meeting(self._reached[path].update)
        grad = first.grad and (first.x.requires_grad or self._trains[path])
        self._calls[path] += 1
        with ExitStack() as stack:
            for member in self.members:
                if member not in calls:
                    stack.enter_context(Subject(member, model.plan.graphs[self.row_of(member)]).unchanged())
            stack.enter_context(torch.set_grad_enabled(grad))
            if not self._reading.parts[path].shared:
                x = meeting.take_in([calls[member].x if member in calls else x for member in self._rows])
            self._see(Form(path, first.training, grad, x.requires_grad, first.x.shape), x.detach())
            handed = meeting.hand_out(model(x, first.training, call=self._calls[path]))
        return {member: handed[self.row_of(member)] for member in calls}

    def _backpropagate(self, losses: Mapping[Member, torch.Tensor]) -> None:
        if losses:
            with without_casts(self._reading.device.type):
                torch.autograd.backward(list(losses.values()))
        self._refuse(self._take_unreached(self._reached))

    def _idle(self, losses: Collection[Member]) -> set[nn.Parameter]:
        """Collect gradients of the members' own parameters; return parameters in stacks that have no gradient.

        Where a backward does not reach a member's row, a merged model gives zeros in place of no gradient.
        """
        idle: set[nn.Parameter] = set()
        for member in self.members:
            row, paths = self.row_of(member), self._path_of[member]
            for parameter, stack in self._stacked[member]:
                path = paths.get(parameter)
                if path is None or row in self._reached[path]:
                    continue
                if stack.rows and parameter.grad is None:
                    idle.add(parameter)
                elif not stack.rows and (member not in losses or not is_any(parameter.grad)):
                    parameter.grad = None
        self._collect_own_gradients()
        return idle

    # --- what may change under way ---

    def _build(self) -> None:
        super()._build()
        self._has_opaque = True  # a loss may have terms of the parameters themselves
        self._stacked: dict[Member, list[tuple[nn.Parameter, Stack]]] = {member: [] for member in self._rows}
        for stack in self._stacks:
            for parameter, row in zip(stack.parameters, stack.members, strict=True):
                self._stacked[self._rows[row]].append((parameter, stack))
        # all are, because they are of several members
        self._merged = {path: model for path, model in self._models.items() if isinstance(model, MergedModel)}
        modules = {member: self._parts[member].modules for member in self._rows}
        self._path_of = {
            member: {parameter: path for path, part in parts.items() for parameter in part.parameters()}
            for member, parts in modules.items()
        }
        self._trains = {
            path: any(parameter.requires_grad for parts in modules.values() for parameter in parts[path].parameters())
            for path in self._reading.parts
        }
        relied = {
            member: [*(p for p, _ in self._stacked[member]), *(t for part in parts.values() for t in frozen(part))]
            for member, parts in modules.items()
        }
        self._watch.rely_on(relied, [part for parts in modules.values() for part in parts.values()])
        self._set = {member: hyper_parameters(member) for member in self._rows}

    def _refuse(self, wrong: Mapping[Member, str]) -> None:
        """Raise DiffersError if there are members whose own code has changed what the unit relies on."""
        self.wrong.update(wrong)
        self._refuse_wrong()

    def _refresh(self) -> None:
        """Read what steps and hooks have changed in their optimizers, such as a learning rate, or the state."""
        self._optimizer.take_over()
        now = {member: hyper_parameters(member) for member in self.members}
        if any(self._set.get(member) != values for member, values in now.items()):
            self._optimizer.refresh()
            self._set = now

    def _refuse_wrong(self) -> None:
        """Raise DiffersError if a member can't be fused any more."""
        if self.wrong and self._failing is None:
            wrong, self.wrong = self.wrong, {}
            self._note(wrong)
            raise DiffersError(reasons_of(wrong))

    # --- rows that are dropped ---

    def _see(self, form: Form, x: torch.Tensor) -> None:
        """Keep an input of each of the first few forms to probe with: kernels may round other sizes differently."""
        if sum(seen.path == form.path for seen in self._seen) < _MOST_SEEN:
            self._seen.setdefault(form, ([] if self._reading.parts[form.path].shared else list(self._rows), x))
        self._note_cast(x.device)

    def _probe(self) -> list[dict[Any, torch.Tensor]]:
        found = []
        for form, (rows, seen) in self._seen.items():
            x = seen[[rows.index(member) for member in self._rows]] if rows else seen
            with self._unchanged(), self._as_in_training(x.device), self._trying():
                found.append(self._probe_on(x, form))
        return found

    def _probe_on(self, x: torch.Tensor, form: Form) -> dict[Any, torch.Tensor]:
        """Return outputs by member, with gradients also those of inputs, and gradients by parameter, of a part.

        The gradients are of half the sum of the outputs' squares.
        """
        model = self._merged[form.path]
        if not form.grad:
            with torch.no_grad():
                return dict(zip(self._rows, model(x, form.training).clone(), strict=True))
        self._optimizer.zero_grad()
        x = x.detach().requires_grad_(form.reads_grad)
        with torch.enable_grad():
            outputs = model(x, form.training)
            outputs.backward(outputs.detach())
        found: dict[Any, torch.Tensor] = {}
        for row, member in enumerate(self._rows):
            given = [] if x.grad is None else [x.grad[row].flatten()]
            found[member] = torch.cat([outputs[row].detach().flatten(), *given])
        return found | self._take_gradients(model)

    def _take_gradients(self, model: MergedModel) -> dict[Any, torch.Tensor]:
        """Return the gradients of a part's parameters, and clear all."""
        found: dict[Any, torch.Tensor] = {}
        model.take_unreached()
        for stack in model.stacks:
            if stack.tensor.grad is not None:
                found |= dict(zip(stack.parameters, stack.tensor.grad.clone(), strict=True))
        self._collect_own_gradients()
        self._optimizer.zero_grad()
        return found
