"""The optimizers of several members, stepped as one."""

import operator
import weakref
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from nasflow.training.optim.clip import Clip, StackedClip
from nasflow.training.optim.parameter_rows import Row, Rule, Slab, Sweep, lay_counts, make_slabs, states_of
from nasflow.training.optim.rules import AdamConstants, Kind, rule_of, stackable

__all__ = ["Clip", "Stack", "StackedOptimizer"]


@dataclass(frozen=True)
class Stack:
    """Parameters of several members, stored side by side.

    A stack that loses members keeps its row dimension, even for one row, because a parameter without it is rounded
    differently.

    Attributes:
        tensor: a leaf that requires grad, `[n, ...]`, with contiguous rows one after the other in memory; or, without
            `rows`, one member's parameter itself.
        parameters: the members' own; the data of `parameters[i]` is a view of `tensor[i]`.
        members: the member of each row, as a position among the optimizers.
        rows: whether the tensor has rows.
    """

    tensor: torch.Tensor
    parameters: tuple[nn.Parameter, ...]
    members: tuple[int, ...]
    rows: bool = True


@dataclass(frozen=True)
class _Place:
    """The place of a trained parameter in a stack."""

    position: int  # its row in the stack
    parameter: nn.Parameter
    member: int
    slot: int  # the number of its param group among those of all members


class _Leaf:
    """A stack as a matrix `[n, k]`, with `k` elements per row in memory order.

    Args:
        places: the rows that are stepped together.
    """

    def __init__(self, stack: Stack, places: Sequence[_Place]):
        self.places = places
        self.size = len(stack.parameters)
        self.kind = Kind(stack.tensor.device.type, stack.tensor.dtype, lone=not stack.rows)
        self._tensor = stack.tensor
        self._shape = (self.size, stack.tensor.numel() // self.size)
        self._layout = stack.tensor.stride()
        if stack.rows and self.size > 1 and self._layout[0] != self._shape[1]:
            raise ValueError(f"the rows of a stack {tuple(stack.tensor.shape)} are not one after the other in memory")
        self.matrix = self._as_matrix(stack.tensor.detach())
        self._seen: weakref.ref[torch.Tensor] | None = None  # the last gradient
        self._kept: tuple[torch.Tensor, torch.Tensor] | None = None  # one that is reused, as on a tape, and its matrix

    @property
    def has_sparse_gradient(self) -> bool:
        """Whether the gradient is sparse, as of a look-up that tracing did not show; of a row it never is."""
        return self._tensor.grad is not None and self._tensor.grad.is_sparse

    def gradient(self) -> torch.Tensor | None:
        """Return the gradient with its elements in the same order, or None if there is none."""
        grad = self._tensor.grad
        if grad is None:
            return None
        if grad.stride() != self._layout:
            return self._as_matrix(torch.empty_like(self._tensor).copy_(grad))
        if self._kept is not None and self._kept[0] is grad:
            return self._kept[1]
        matrix = self._as_matrix(grad)
        self._kept = (grad, matrix) if self._seen is not None and self._seen() is grad else None
        self._seen = weakref.ref(grad)
        return matrix

    def _as_matrix(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.as_strided(self._shape, (self._shape[1], 1))


@dataclass
class _Alone:
    """A member that is stepped by its own optimizer."""

    optimizer: torch.optim.Optimizer
    clip: Clip | None
    places: list[tuple[Stack, _Place]] = field(default_factory=list)

    def step(self, idle: Collection[nn.Parameter]) -> None:
        """Assign the gradients to the parameters, but for idle ones, clip and step."""
        places = [(stack, place) for stack, place in self.places if stack.rows]
        rows = [(None if place.parameter in idle else stack.tensor.grad, place) for stack, place in places]
        for grad, place in rows:
            place.parameter.grad = None if grad is None else grad[place.position]
        try:
            if self.clip is not None:
                self.clip.apply(place.parameter for _, place in self.places)
            with torch.enable_grad():
                self.optimizer.step()
        finally:
            for _, place in rows:
                place.parameter.grad = None


class StackedOptimizer:
    """Steps SGD, Adam, AdamW, RMSprop and Adagrad of several members together, and other optimizers one by one.

    A member is updated as by its own optimizer, up to rounding, whatever the others' hyper-parameters are. Its bits do
    not depend on the other members. Optimizer states are stored side by side, and views of them are in each
    optimizer's own `state`, in torch's form. So the `state_dict()` of a member's optimizer is current after every
    step, and the member can leave at any time and continue with that optimizer alone.

    Args:
        optimizers: the members' own, with any saved states already loaded.
        stacks: all parameters that they train, on one device.
        clips: how each member's gradients are clipped.
        common: (beta1, beta2, eps) of Adam and AdamW with which stacked rows use torch's fused kernel, two or three
            times as fast as others. Keep it when members leave, so that the others keep their bits.
        failed: called with a member's position and the exception that its own optimizer raised; with None, the
            exception is raised.

    Attributes:
        keeps_gradients: whether gradients are after a step what they were when it began, once clipped.

    Raises:
        ValueError: an optimizer trains a parameter that is in no stack, or rows are not one after the other in memory.
    """

    def __init__(
        self,
        optimizers: Sequence[torch.optim.Optimizer],
        stacks: Sequence[Stack],
        clips: Sequence[Clip | None],
        *,
        common: AdamConstants = (0.9, 0.999, 1e-8),
        failed: Callable[[int, Exception], None] | None = None,
    ):
        self._optimizers = list(optimizers)
        self._common = common
        self._failed = failed
        self.keeps_gradients = False
        self._counts_steps = True
        self._counted = torch.float64 if torch.get_default_dtype() == torch.float64 else torch.float32  # as in torch
        self._made = 0  # how often what steps read was made anew
        self._noted: list[Any] = []  # states that are known to be in place
        self._versions: list[int] = []  # of the counts of steps
        self._tensors = [stack.tensor for stack in stacks]
        self._stacks, self._clips = list(stacks), list(clips)
        self._lay([member for member, optimizer in enumerate(optimizers) if not stackable(optimizer)])

    def _lay(self, alone: Collection[int]) -> None:
        """Divide the parameters among what steps them; the optimizers of `alone` step theirs."""
        self._alone = {member: _Alone(self._optimizers[member], self._clips[member]) for member in alone}
        self._leaves: list[_Leaf] = []
        for stack, places in zip(self._stacks, _places(self._optimizers, self._stacks), strict=True):
            together = [place for place in places if place.member not in self._alone]
            if together:
                self._leaves.append(_Leaf(stack, together))
            for place in places:
                if place.member in self._alone:
                    self._alone[place.member].places.append((stack, place))
        self._lone = [leaf for leaf in self._leaves if leaf.kind.lone]
        self._kinds = {(place.member, place.slot, leaf.kind) for leaf in self._leaves for place in leaf.places}
        owners = [{place.position: place.member for place in leaf.places} for leaf in self._leaves]
        self._clip = StackedClip(
            self._clips,
            [[of.get(row) for row in range(leaf.size)] for leaf, of in zip(self._leaves, owners, strict=True)],
        )
        self._pattern: tuple[bool, ...] | None = None  # which leaves have gradients in the prepared steps
        self._build()

    def refresh(self) -> None:
        """Read the hyper-parameters from the optimizers' `param_groups` again, for example after a schedule stepped."""
        if self._find_rules() != self._rules:
            self._build()
        elif self._pattern is not None:
            self._make_sweeps()

    def reread(self) -> None:
        """Take over what hooks have changed in the optimizers' states, also counts of steps. Slower than `refresh`."""
        rows = [(row, slab) for slab in self._slabs for row in slab.rows]
        made = {id(row): slab.steps + row.age * (not slab.rule.in_step) for row, slab in rows}
        counts = [(row, count) for steps, of in self._counts for row, count in zip(of, steps.tolist(), strict=True)]
        states = [(row, self._optimizers[row.member].state.get(row.parameter, {})) for row, _ in rows]
        is_replaced = any(state.get(name) is not row.kept.get(name) for row, state in states for name in row.views)
        if is_replaced or any(made[id(row)] != count for row, count in counts):
            self._build()
        self._noted, self._versions = states_of(self._stepped()), self._versions_of_counts()

    def take_over(self) -> None:
        """As `reread`, but only if a state was replaced, or a count written, since the last step; fast otherwise."""
        states = states_of(self._stepped())
        is_same = len(states) == len(self._noted) and all(map(operator.is_, states, self._noted))
        if not is_same or self._versions != self._versions_of_counts():
            self.reread()

    def _stepped(self) -> list[torch.optim.Optimizer]:
        return [optimizer for member, optimizer in enumerate(self._optimizers) if member not in self._alone]

    def _versions_of_counts(self) -> list[int]:
        return [steps._version for steps, _ in self._counts]

    def zero_grad(self) -> None:
        """Set all gradients to None."""
        for tensor in self._tensors:
            tensor.grad = None

    @torch.no_grad()
    def step(self, idle: Collection[nn.Parameter] = (), skipped: Collection[int] = ()) -> None:
        """Clip the gradients and step; the gradients may be overwritten, unless `keeps_gradients` is set.

        Parameters without a gradient do not change, as in torch.

        Args:
            idle: parameters that have no gradient, but are in stacks with others that have one.
            skipped: members that make no step; their gradients may be anything.
        """
        if skipped:
            places = [place for leaf in self._leaves for place in leaf.places if place.member in skipped]
            idle = {*idle, *(place.parameter for place in places)}
        with self._unchanged(idle) if idle else nullcontext():
            self._step(idle, skipped)
            if self._counts_steps:
                self.count_step()

    def count_step(self) -> None:
        """Count a step on the host, after its operations; `step` does that itself, but within `uncounted`."""
        for slab in self._live:
            slab.steps += 1
        for steps, stepping in self._stepping:
            steps.add_(stepping)
        self._versions = self._versions_of_counts()

    @contextmanager
    def uncounted(self) -> Iterator[None]:
        """Within this, steps make their operations on the device only."""
        self._counts_steps = False
        try:
            yield
        finally:
            self._counts_steps = True

    @property
    def form(self) -> Hashable:
        """What decides on the host which operations a step makes; None if it runs optimizers of members."""
        return None if self._alone else (self._made, *(sweep.form for sweep in self._sweeps))

    def _step(self, idle: Collection[nn.Parameter], skipped: Collection[int]) -> None:
        if sparse := {leaf.places[0].member for leaf in self._lone if leaf.has_sparse_gradient}:
            self._lay({*self._alone, *sparse})
        grads = [leaf.gradient() for leaf in self._leaves]
        pattern = tuple(grad is not None for grad in grads)
        if pattern != self._pattern:
            self._plan(grads)
            self._pattern = pattern
        self._clip.apply(grads)
        kept = [(grad, grad.clone()) for grad in grads if grad is not None] if self.keeps_gradients else []
        for sweep in self._sweeps:
            sweep.run(grads)
        for grad, values in kept:
            grad.copy_(values)
        for member, alone in self._alone.items():
            if member not in skipped:
                self._step_alone(member, alone, idle)

    def _step_alone(self, member: int, alone: _Alone, idle: Collection[nn.Parameter]) -> None:
        try:
            alone.step(idle)
        except Exception as error:  # the member's own failure
            if self._failed is None:
                raise
            self._failed(member, error)

    @contextmanager
    def _unchanged(self, idle: Collection[nn.Parameter]) -> Iterator[None]:
        """Restore these parameters and the states of their optimizers afterwards."""
        kept: list[tuple[torch.Tensor, torch.Tensor]] = []
        fresh: list[tuple[torch.optim.Optimizer, nn.Parameter]] = []
        ages = False  # whether some rows are younger now than the others of their slabs
        for place, kind in [(place, leaf.kind) for leaf in self._leaves for place in leaf.places]:
            if place.parameter not in idle:
                continue
            optimizer = self._optimizers[place.member]
            state = [value for value in optimizer.state.get(place.parameter, {}).values() if torch.is_tensor(value)]
            kept += [(tensor, tensor.clone()) for tensor in [place.parameter.detach(), *state]]
            ages |= not state or self._rules[place.member, place.slot, kind].counted
            if not state:
                fresh.append((optimizer, place.parameter))
        yield
        for tensor, values in kept:
            tensor.copy_(values)
        for optimizer, parameter in fresh:
            optimizer.state.pop(parameter, None)
        if ages:
            self._build()

    def _groups(self) -> list[dict[str, Any]]:
        """The param groups of all members, by their slots."""
        return [group for optimizer in self._optimizers for group in optimizer.param_groups]

    def _find_rules(self) -> dict[tuple[int, int, Kind], Rule]:
        groups = self._groups()
        return {
            (member, slot, kind): rule_of(self._optimizers[member], groups[slot], kind, self._common)
            for member, slot, kind in self._kinds
        }

    @torch.no_grad()
    def _build(self) -> None:
        """Store the optimizer states side by side."""
        self._rules = self._find_rules()
        rows = [[self._row(place, leaf.kind) for place in leaf.places] for leaf in self._leaves]
        self._counts = lay_counts([row for of in rows for row in of if row.rule.counted], self._groups(), self._counted)
        self._slabs: list[Slab] = [
            slab
            for i, (leaf, of) in enumerate(zip(self._leaves, rows, strict=True))
            for slab in make_slabs(i, leaf.matrix, of)
        ]
        for row in (row for of in rows for row in of if row.kept):
            self._install(row)
        self._pattern = None
        self._made += 1
        self._sweeps: list[Sweep] = []

    def _row(self, place: _Place, kind: Kind) -> Row:
        rule = self._rules[place.member, place.slot, kind]
        state = self._optimizers[place.member].state.get(place.parameter, {})
        kept = {name: value for name, value in state.items() if isinstance(value, torch.Tensor)}
        age = float(kept.get("step", 0)) if rule.counted else float(bool(kept))
        return Row(place.position, place.member, place.slot, place.parameter, rule, kept, age)

    def _install(self, row: Row) -> None:
        optimizer = self._optimizers[row.member]
        optimizer._opt_called = True  # type: ignore[attr-defined]  # or schedules warn that it never steps
        if row.views:
            optimizer.state[row.parameter].update(row.views)
        row.kept = row.views

    def _plan(self, grads: Sequence[torch.Tensor | None]) -> None:
        """Prepare for steps with gradients like these."""
        self._made += 1
        self._clip.prepare(grads)
        self._live = [slab for slab in self._slabs if grads[slab.stack] is not None]
        stepping = {id(row) for slab in self._live for row in slab.rows}
        for row in (row for slab in self._live for row in slab.rows if not row.kept):
            self._install(row)
        self._stepping = [
            (steps, steps.new_tensor([id(row) in stepping for row in rows])) for steps, rows in self._counts
        ]
        self._make_sweeps()

    def _make_sweeps(self) -> None:
        """Group the slabs that can be updated together."""
        groups = self._groups()
        alike: dict[Any, list[Slab]] = {}
        for slab in self._live:
            shared = slab.rule.sweep.shared(groups[slab.rows[0].slot])
            alike.setdefault((slab.rule, slab.steps, slab.whole.dtype, shared), []).append(slab)
        former = {tuple(map(id, sweep.slabs)): sweep for sweep in self._sweeps}
        sweeps = [former.get(tuple(map(id, slabs))) or slabs[0].rule.sweep(slabs) for slabs in alike.values()]
        self._made += any(sweep not in self._sweeps for sweep in sweeps)
        self._sweeps = sweeps
        for sweep in self._sweeps:
            sweep.read(groups)


def _places(optimizers: Sequence[torch.optim.Optimizer], stacks: Sequence[Stack]) -> list[list[_Place]]:
    """Return, for each stack, the places of the parameters that the optimizers train."""
    slots: dict[tuple[int, nn.Parameter], int] = {}
    count = 0
    for member, optimizer in enumerate(optimizers):
        for slot, group in enumerate(optimizer.param_groups, start=count):
            slots.update(dict.fromkeys([(member, parameter) for parameter in group["params"]], slot))
        count += len(optimizer.param_groups)
    found = [
        [
            _Place(position, parameter, member, slots[member, parameter])
            for position, (parameter, member) in enumerate(zip(stack.parameters, stack.members, strict=True))
            if (member, parameter) in slots
        ]
        for stack in stacks
    ]
    placed = {(place.member, place.parameter) for places in found for place in places}
    for member, parameter in slots:
        if parameter.requires_grad and (member, parameter) not in placed:
            raise ValueError(f"member {member} trains a parameter {tuple(parameter.shape)} that is in no stack")
    return found
