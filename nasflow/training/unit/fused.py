"""A fused unit: one forward, one backward and one optimizer step for all its members."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import nn

from nasflow.errors import TrialError
from nasflow.evaluator.group_metrics import SupervisedGroup
from nasflow.job import activity
from nasflow.merge.run.merged_model import MergedModel
from nasflow.merge.run.solo_model import DirectModel
from nasflow.merge.values.parameter_stacks import LeftError, OwnCode
from nasflow.training.member.member import Member
from nasflow.training.optim.clip import Clip
from nasflow.training.optim.rules import AdamConstants
from nasflow.training.optim.stacked import Stack, StackedOptimizer
from nasflow.training.unit.base import Unit, guarding
from nasflow.training.unit.member_step import Subject

Merge = Callable[[Sequence[int], OwnCode], MergedModel | DirectModel]

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


class FusedUnit(Unit):
    """Members with a ready-made evaluator, with models that run as one.

    A member that fails stays in the stacks, unread, until they are compacted before the next epoch; no operation lets
    its values reach the others.

    Args:
        merge: builds the merged model of the members at the given positions of the unit.
        compare: called with the unit and the first batch of every epoch, before the step; raises DiffersError.
    """

    can_wait = True

    def __init__(
        self,
        members: list[Member],
        failed: Callable[[Member, BaseException], None],
        merge: Merge,
        compare: Callable[["FusedUnit", Any], None] | None = None,
    ):
        super().__init__(members, failed)
        self._merge = merge
        self._compare = compare
        self._positions = list(range(len(members)))
        self._rows = list(members)
        self._seconds = 0.0
        self._failing: set[Member] | None = None  # in a step that is only tried
        self._stays: int | None = None  # with so many members left, compacting would change their bits
        self._seen: dict[tuple[bool, torch.Size], tuple[torch.Tensor, torch.Tensor]] = {}
        self._cast: torch.dtype | None = None  # of autocast in training
        self._common = _common([member.fitting.optimizer for member in members])
        self._build()

    @property
    def is_single(self) -> bool:
        """Whether the unit has one row."""
        return len(self._rows) == 1

    @property
    def model(self) -> MergedModel | DirectModel:
        """The model that runs the unit now."""
        return self._model

    @property
    def trained_tensors(self) -> list[torch.Tensor]:
        """The tensors that are trained: stacks, and parameters that are in none."""
        return [stack.tensor for stack in self._stacks]

    def row_of(self, member: Member) -> int:
        """Return a member's row in the outputs."""
        return self._rows.index(member)

    def train_batch(self, batch: Any, index: int) -> None:
        """Make one step of every member."""
        if index == 0 and self._compare is not None:
            self._compare(self, batch)
        began = time.perf_counter()
        x, target = batch
        self._see(True, x, target)
        self._optimizer.zero_grad()

        def losses_of(outputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            losses, gradients = self._group.losses_and_gradients(outputs, target)
            finite = torch.isfinite(losses)
            if not finite.all():
                self._drop_not_finite(losses, finite, index)
            return losses, gradients

        if self._model.backpropagate(x, losses_of) is None:
            return
        self._collect_own_gradients()
        self._optimizer.step()
        for member in self.members:
            member.fitting.steps += 1
        if self._steps_schedules:
            for member in list(self.members):
                with guarding(member, self._failed):
                    member.fitting.end_batch(index + 1)
            self._optimizer.refresh()
        self._seconds += time.perf_counter() - began

    def pass_over(self, batch: Any, index: int) -> None:
        """Compare as on any first batch, and continue from what the members had logged."""
        if index == 0:
            if self._compare is not None:
                self._compare(self, batch)
            self._group.go_on([member.take_sums("train_loss") for member in self._rows])
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
        """
        group = SupervisedGroup([member.module for member in self._rows])  # type: ignore[misc]
        seen: list[torch.Tensor] = []

        def losses_of(outputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            losses, gradients = group.losses_and_gradients(outputs, target)
            seen[:] = [outputs.detach().clone(), losses.clone()]
            return losses, gradients

        self._optimizer.zero_grad()
        with self._trying() as failing:
            ran = self._model.backpropagate(x, losses_of, taped)
        if ran is None:
            raise RuntimeError("a model failed on a batch that it has seen")
        self._collect_own_gradients()
        # copies, because a tape writes to the same memory again
        grads = [(stack, None if stack.tensor.grad is None else stack.tensor.grad.clone()) for stack in self._stacks]
        self._optimizer.zero_grad()
        return TriedStep(seen[0], seen[1], grads, failing)

    def validate_batch(self, batch: Any, index: int) -> None:
        """Score every member."""
        began = time.perf_counter()
        x, target = batch
        self._see(False, x, target)
        outputs = self._model(x, False)
        if outputs is None:
            return
        self._group.validate(outputs, target)
        self._seconds += time.perf_counter() - began

    def close_epoch(self) -> None:
        """Give the members their losses and metrics; each gets an equal share of the time."""
        shares = self._seconds / max(1, len(self.members))
        finite = _are_finite(self._stacks, len(self._rows))
        logged = zip(self._rows, self._group.close_training(), self._group.close_validation(), finite, strict=True)
        for member, training, validation, is_finite in logged:
            if member in self.members:
                member.note({**training, **validation}, shares, is_finite)
        self._seconds = 0.0

    def start_epoch(self) -> None:
        """Drop the rows of members that left, and read what schedules and hooks changed between epochs."""
        if len(self._rows) > len(self.members) != self._stays:
            self._compact()
        self._optimizer.refresh()

    def _build(self) -> None:
        rows = self._rows

        def failed(row: int, error: BaseException) -> None:
            if self._failing is not None:
                self._failing.add(rows[row])
            elif rows[row] in self.members:
                self._failed(rows[row], error)

        def own_code(row: int, run: Callable[[], Any]) -> Any:
            member = rows[row]
            if member not in self.members:
                raise LeftError
            try:
                with activity.running(member.number):
                    return run()
            except (Exception, SystemExit) as error:  # whatever a member's code raises is its own failure
                failed(row, error)
                raise LeftError from error

        self._model = self._merge(self._positions, own_code)
        self._has_opaque = isinstance(self._model, MergedModel) and self._model.has_opaque
        self._group = SupervisedGroup([member.module for member in rows])  # type: ignore[misc]
        self._stacks = _stacks(self._model, rows)
        self._optimizer = StackedOptimizer(
            [member.fitting.optimizer for member in rows],
            self._stacks,
            [_clip(member) for member in rows],
            common=self._common,
            failed=failed,
        )
        self._steps_schedules = any(member.fitting.steps_schedules for member in rows)

    def _drop_not_finite(self, losses: torch.Tensor, finite: torch.Tensor, index: int) -> None:
        for member, loss, good in zip(self._rows, losses.tolist(), finite.tolist(), strict=True):
            if not good and member in self.members:
                epoch = member.finished_epochs + 1
                self._failed(member, TrialError(f"training loss is {loss} in epoch {epoch}, step {index}"))

    def _compact(self) -> None:
        """Drop the rows of members that left, if that leaves the others' results the same, bit for bit."""
        rows, positions = self._rows, self._positions
        kept = [row for row, member in enumerate(rows) if member in self.members]
        before = [self._probe(*seen) for seen in self._seen.items()]
        self._rows, self._positions = [rows[row] for row in kept], [positions[row] for row in kept]
        self._build()
        after = [self._probe(*seen) for seen in self._seen.items()]
        if not all(_equal(*pair, self._rows) for pair in zip(before, after, strict=True)):
            self._rows, self._positions = rows, positions
            self._stays = len(self.members)
            self._build()

    def _see(self, training: bool, x: torch.Tensor, target: torch.Tensor) -> None:
        """Keep a batch of each of the first few sizes to probe with: kernels may round other sizes differently."""
        if len(self._seen) < _MOST_SEEN:
            self._seen.setdefault((training, x.shape), (x, target))
        device = x.device.type
        self._cast = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None

    def _probe(
        self, kind: tuple[bool, torch.Size], batch: tuple[torch.Tensor, torch.Tensor]
    ) -> dict[Any, torch.Tensor]:
        """Return outputs by member, and in training gradients by parameter; the members don't change."""
        with self._unchanged(), self._as_in_training(batch[0].device):
            if kind[0]:
                step = self.try_step(*batch)
                return {**dict(zip(self._rows, step.outputs, strict=True)), **_known(step.gradients)}
            with self._trying(), torch.no_grad():
                outputs = self._model(batch[0], False)
        if outputs is None:
            raise RuntimeError("a model failed on a batch that it has seen")
        return dict(zip(self._rows, outputs.clone(), strict=True))

    @contextmanager
    def _unchanged(self) -> Iterator[None]:
        """Restore the members' models and random streams afterwards."""
        graphs = self._model.plan.graphs if isinstance(self._model, MergedModel) else ()
        with ExitStack() as stack:
            for member, graph in zip(self._rows, graphs, strict=True):
                stack.enter_context(Subject(member, graph).unchanged())
            yield

    def _as_in_training(self, device: torch.device) -> AbstractContextManager[Any]:
        return nullcontext() if self._cast is None else torch.autocast(device.type, self._cast)

    @contextmanager
    def _trying(self) -> Iterator[set[Member]]:
        """Collect members that fail inside instead of reporting them: they fail again in the real step."""
        failing: set[Member] = set()
        self._failing = failing
        try:
            yield failing
        finally:
            self._failing = None

    def _collect_own_gradients(self) -> None:
        """Add gradients of the members' own parameters to the stacks: an opaque module may use another's layer."""
        if not self._has_opaque:
            return
        for stack in self._model.stacks:
            for row, parameter in enumerate(stack.parameters):
                if parameter.grad is not None:
                    if stack.tensor.grad is None:
                        stack.tensor.grad = torch.zeros_like(stack.tensor)
                    stack.tensor.grad[row] += parameter.grad
                    parameter.grad = None


def _stacks(model: MergedModel | DirectModel, members: Sequence[Member]) -> list[Stack]:
    """The model's stacks, and a new stack for every parameter that is in none."""
    stacks = [Stack(stack.tensor, stack.parameters, stack.members) for stack in model.stacks]
    placed = {parameter for stack in stacks for parameter in stack.parameters}
    for position, member in enumerate(members):
        for group in member.fitting.optimizer.param_groups:
            for parameter in group["params"]:
                if parameter not in placed:
                    stacks.append(Stack(parameter, (parameter,), (position,), rows=False))
    return stacks


@torch.no_grad()
def _are_finite(stacks: Sequence[Stack], members: int) -> list[bool]:
    """Return, by member, whether the norms of all its parameters are finite."""
    norms = [torch.linalg.vector_norm(stack.tensor.reshape(len(stack.members), -1), dim=1) for stack in stacks]
    finite = torch.isfinite(torch.cat(norms)).tolist() if norms else []
    owners = [member for stack in stacks for member in stack.members]
    bad = {member for member, is_finite in zip(owners, finite, strict=True) if not is_finite}
    return [member not in bad for member in range(members)]


def _common(optimizers: Sequence[torch.optim.Optimizer]) -> AdamConstants:
    """The constants of Adam that all members share, else torch's defaults; fixed for the life of the unit."""
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    found = {(*group.get("betas", ()), group.get("eps")) for group in groups}
    constants = found.pop() if len(found) == 1 else ()
    return constants if len(constants) == 3 else (0.9, 0.999, 1e-8)


def _clip(member: Member) -> Clip | None:
    fitting = member.fitting
    return None if fitting.clip_val is None else Clip(fitting.clip_val, fitting.clip_algorithm)  # type: ignore[arg-type]


def _known(gradients: dict[nn.Parameter, torch.Tensor | None]) -> dict[nn.Parameter, torch.Tensor]:
    return {parameter: grad for parameter, grad in gradients.items() if grad is not None}


def _equal(before: dict[Any, torch.Tensor], after: dict[Any, torch.Tensor], members: Sequence[Member]) -> bool:
    """Whether members have the same bits in both, in what both found of them."""
    mine = {*members, *(parameter for member in members for parameter in member.module.parameters())}
    return all(torch.equal(before[key], after[key]) for key in mine & before.keys() & after.keys())
