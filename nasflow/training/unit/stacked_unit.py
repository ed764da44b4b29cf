"""Units whose members' models run as one: what is stacked, and how rows are dropped when members leave."""

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from torch import nn

from nasflow.autocast import without_casts
from nasflow.errors import TrialError
from nasflow.job import activity
from nasflow.merge.run.merged_model import MergedModel
from nasflow.merge.run.solo_model import DirectModel
from nasflow.merge.values.parameter_stacks import LeftError, OwnCode
from nasflow.training.device.fault import refuse_fault
from nasflow.training.device.memory import is_of_memory
from nasflow.training.member.member import Member
from nasflow.training.member.own_step import share_of
from nasflow.training.optim.clip import Clip
from nasflow.training.optim.rules import AdamConstants
from nasflow.training.optim.stacked import Stack, StackedOptimizer
from nasflow.training.optim.stacked_scales import StackedScales
from nasflow.training.unit.averages import StackedAverages
from nasflow.training.unit.base import Unit, guarding
from nasflow.training.unit.member_step import Subject
from nasflow.training.unit.reasons import UNREACHED

Merge = Callable[[Sequence[int], OwnCode], Mapping[str, MergedModel | DirectModel]]


class StackedUnit(Unit):
    """Members whose models run as one, stepped by one optimizer.

    A member that fails stays in the stacks, unread, until they are compacted before the next epoch; no operation lets
    its values reach the others.

    Args:
        merge: builds the merged models of the members at the given positions of the unit, by the layers' path in their
            modules; no two of them have a parameter in common.
    """

    def __init__(self, members: list[Member], failed: Callable[[Member, BaseException], None], merge: Merge):
        super().__init__(members, failed)
        self._merge = merge
        self._positions = list(range(len(members)))
        self._rows = list(members)
        self._seconds = 0.0
        self._failing: set[Member] | None = None  # in a step that is only tried
        self._capturing = False  # launches a step that is captured, and not executed
        self._stays: int | None = None  # with so many members left, compacting would change their bits
        self._pace = members[0].pace  # all have steps of as many batches
        self._earlier: list[torch.Tensor | None] = []  # gradients of a step's earlier batches, by stack
        self._cast: torch.dtype | None = None  # of autocast in training
        self._common = _common([member.fitting.optimizer for member in members])
        self._build()

    @property
    def is_single(self) -> bool:
        """Whether the unit has one row."""
        return len(self._rows) == 1

    @property
    def models(self) -> Mapping[str, MergedModel | DirectModel]:
        """The models that run the unit now, by the layers' path in the members' modules."""
        return self._models

    @property
    def trained_tensors(self) -> list[torch.Tensor]:
        """The tensors that are trained: stacks, and parameters that are in none."""
        return [stack.tensor for stack in self._stacks]

    def row_of(self, member: Member) -> int:
        """Return a member's row in the outputs."""
        return self._rows.index(member)

    def start_epoch(self) -> None:
        """Drop the rows of members that left, and read what schedules and hooks changed between epochs."""
        if len(self._rows) > len(self.members) != self._stays:
            self._compact()
        self._optimizer.reread()
        self._optimizer.refresh()

    @abstractmethod
    def _probe(self) -> list[dict[Any, torch.Tensor]]:
        """Return outputs by member, and gradients by parameter, on batches that were seen; the members don't change."""

    def _build(self) -> None:
        rows = self._rows

        def failed(row: int, error: BaseException) -> None:
            if self._failing is not None:
                self._failing.add(rows[row])
            else:
                self._report(rows[row], error)

        def own_code(row: int, run: Callable[[], Any]) -> Any:
            member = rows[row]
            if member not in self.members:
                raise LeftError
            try:
                with activity.running(member.trial):
                    return run()
            except (Exception, SystemExit) as error:  # whatever a member's code raises is its own failure
                if self._capturing:
                    raise
                refuse_fault(error)
                if is_of_memory(error) and len(rows) > 1:
                    raise  # all have filled the memory, whichever asks for more
                failed(row, error)
                raise LeftError from error

        self._models = self._merge(self._positions, own_code)
        self._has_opaque = any(isinstance(model, MergedModel) and model.has_opaque for model in self._models.values())
        self._stacks = _stacks(self._models.values(), rows)
        self._optimizer = StackedOptimizer(
            [member.fitting.optimizer for member in rows],
            self._stacks,
            [_clip(member) for member in rows],
            common=self._common,
            failed=failed,
        )
        self._steps_schedules = any(member.fitting.steps_schedules for member in rows)
        optimizers = [member.fitting.optimizer for member in rows]
        scales = [member.fitting.scale for member in rows]
        self._scaled_rows = [(row, scale) for row, scale in enumerate(scales) if scale is not None]  # all, or none
        self._scales = StackedScales(self._stacks)
        self._averages = StackedAverages([member.average for member in rows], optimizers, self._stacks)

    @torch.no_grad()
    def _are_finite(self) -> list[bool]:
        """Return, by row, whether the norms of all its member's parameters are finite that are trained."""
        stacks = [stack for stack in self._stacks if stack.tensor.requires_grad]
        norms = [torch.linalg.vector_norm(stack.tensor.reshape(len(stack.members), -1), dim=1) for stack in stacks]
        finite = torch.isfinite(torch.cat(norms)).tolist() if norms else []
        owners = [member for stack in stacks for member in stack.members]
        bad = {member for member, is_finite in zip(owners, finite, strict=True) if not is_finite}
        return [member not in bad for member in range(len(self._rows))]

    def _share(self, losses: torch.Tensor) -> torch.Tensor:
        """Return what losses, or gradients for outputs, of a batch contribute to an optimizer step."""
        return share_of(losses, self._pace.accumulated)

    def _clear_gradients(self, index: int) -> None:
        """Set all gradients to None before a batch, and remember those of the same step's earlier batches."""
        if self._pace.accumulated > 1:
            first = self._pace.is_first(index)
            self._earlier = [None if first else stack.tensor.grad for stack in self._stacks]
        self._optimizer.zero_grad()

    def _accumulate(self, index: int) -> bool:
        """Add the gradients of a step's earlier batches to those of this one; return whether it is the step's last."""
        if self._pace.accumulated > 1:
            for stack, earlier in zip(self._stacks, self._earlier, strict=True):
                grad = stack.tensor.grad
                if earlier is not None:
                    stack.tensor.grad = earlier if grad is None else earlier.add_(grad)
                elif grad is not None:
                    stack.tensor.grad = grad.clone()  # the next backward may write to the same memory
        return self._pace.is_last(index)

    def _loss_scales(self, device: torch.device) -> torch.Tensor | None:
        """Return by what the losses of a batch are multiplied in half precision, `[N]`; None in others."""
        scales = [scale.value / self._pace.accumulated for _, scale in self._scaled_rows]
        return self._scales.placed(scales, device) if scales else None

    def _unscale(self, idle: Collection[nn.Parameter] = ()) -> dict[int, bool]:
        """Divide gradients by their scales; return of the rows with any whether the optimizer has to skip the step."""
        scales = [scale.value for _, scale in self._scaled_rows]
        found = self._scales.unscale(scales, idle) if scales else {}
        return {row: overflows for row, overflows in found.items() if self._rows[row] in self.members}

    def _step(self, device: torch.device, overflows: Mapping[int, bool], idle: Collection[nn.Parameter] = ()) -> None:
        """Step the optimizers, and let the loss scales follow.

        Args:
            overflows: as `_unscale` returned it.
            idle: parameters in stacks that have no gradient.
        """
        with without_casts(device.type):
            self._optimizer.step(idle, [row for row, skips in overflows.items() if skips])
        self._count_step()
        for row, scale in self._scaled_rows:
            if row in overflows and self._rows[row] in self.members:
                with guarding(self._rows[row], self._failed):
                    scale.update(overflows[row])

    def _count_step(self) -> None:
        for member in self.members:
            member.fitting.count_step()

    def _report(self, member: Member, error: BaseException) -> None:
        """Report a member that has failed, unless it turns out to have failed before."""
        self.end_run()
        if member in self.members:
            self._failed(member, error)

    def _drop_not_finite(self, losses: torch.Tensor, index: int) -> None:
        """Report the members whose losses `[n]` of a batch are not finite."""
        finite = torch.isfinite(losses)
        if finite.all():
            return
        for member, loss, good in zip(self._rows, losses.tolist(), finite.tolist(), strict=True):
            if not good and member in self.members:
                epoch = member.finished_epochs + 1
                self._failed(member, TrialError(f"training loss is {loss} in epoch {epoch}, step {index}"))

    def _end_steps(self, batch: int) -> None:
        """Step the schedules with the interval "step" after so many batches of the epoch."""
        if self._steps_schedules:
            for member in list(self.members):
                with guarding(member, self._report), member.rng if member.fitting.may_draw else nullcontext():
                    member.fitting.end_batch(batch)
            self._optimizer.refresh()

    def _compact(self) -> None:
        """Drop the rows of members that left, if that leaves the others' results the same, bit for bit."""
        rows, positions = self._rows, self._positions
        kept = [row for row, member in enumerate(rows) if member in self.members]
        before = self._probe()
        self._rows, self._positions = [rows[row] for row in kept], [positions[row] for row in kept]
        self._build()
        after = self._probe()
        if not all(_equal(*pair, self._rows) for pair in zip(before, after, strict=True)):
            self._rows, self._positions = rows, positions
            self._stays = len(self.members)
            self._build()

    @contextmanager
    def _unchanged(self) -> Iterator[None]:
        """Restore the members' models and random streams afterwards."""
        with ExitStack() as stack:
            for model in self._models.values():
                graphs = model.plan.graphs if isinstance(model, MergedModel) else ()
                for member, graph in zip(self._rows, graphs, strict=True):
                    stack.enter_context(Subject(member, graph).unchanged())
            yield

    def _note_cast(self, device: torch.device) -> None:
        """Note whether steps run in autocast, for probes."""
        on = torch.is_autocast_enabled(device.type)
        self._cast = torch.get_autocast_dtype(device.type) if on else None

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

    def _take_unreached(self, reached: Mapping[str, Collection[int]] | None = None) -> dict[Member, str]:
        """Return the members with own code that has passed no gradient on in the last backward, though it mostly does.

        Args:
            reached: the rows of each model that got a gradient; by default all did.
        """
        found: dict[Member, str] = {}
        for path, model in self._models.items():
            if isinstance(model, MergedModel):
                for row in model.take_unreached():
                    if self._rows[row] in self.members and (reached is None or row in reached[path]):
                        found[self._rows[row]] = UNREACHED
        return found

    def _collect_own_gradients(self) -> None:
        """Add gradients of the members' own parameters to the stacks: an opaque module may use another's layer."""
        if not self._has_opaque:
            return
        for stack in (stack for model in self._models.values() for stack in model.stacks):
            for row, parameter in enumerate(stack.parameters):
                if parameter.grad is not None:
                    if stack.tensor.grad is None:
                        stack.tensor.grad = torch.zeros_like(stack.tensor)
                    stack.tensor.grad[row] += parameter.grad
                    parameter.grad = None


def _stacks(models: Iterable[MergedModel | DirectModel], members: Sequence[Member]) -> list[Stack]:
    """The models' stacks, and a new stack for every parameter that is in none."""
    stacks = [Stack(stack.tensor, stack.parameters, stack.members) for model in models for stack in model.stacks]
    placed = {parameter for stack in stacks for parameter in stack.parameters}
    for position, member in enumerate(members):
        for group in member.fitting.optimizer.param_groups:
            for parameter in group["params"]:
                if parameter not in placed:
                    stacks.append(Stack(parameter, (parameter,), (position,), rows=False))
    return stacks


def _common(optimizers: Sequence[torch.optim.Optimizer]) -> AdamConstants:
    """The constants of Adam that all members begin with, else torch's defaults; fixed for the life of the unit.

    A schedule may change those of param groups, such as OneCycleLR, which a unit of a resumed job finds changed.
    """
    found = {(*(own := optimizer.defaults).get("betas", ()), own.get("eps")) for optimizer in optimizers}
    constants = found.pop() if len(found) == 1 else ()
    return constants if len(constants) == 3 else (0.9, 0.999, 1e-8)


def _clip(member: Member) -> Clip | None:
    fitting = member.fitting
    return None if fitting.clip_val is None else Clip(fitting.clip_val, fitting.clip_algorithm)  # type: ignore[arg-type]


def _equal(before: dict[Any, torch.Tensor], after: dict[Any, torch.Tensor], members: Sequence[Member]) -> bool:
    """Whether members have the same bits in both, in what both found of them."""
    mine = {*members, *(parameter for member in members for parameter in member.module.parameters())}
    return all(torch.equal(before[key], after[key]) for key in mine & before.keys() & after.keys())
