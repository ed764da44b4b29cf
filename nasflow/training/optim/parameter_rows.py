"""Rows of parameters that are stepped together, with their optimizer states stored side by side.

Everything here is a matrix with `n` rows, one per parameter, of `k` elements in memory order.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import nn

from nasflow.tensors import copy_over

Numbers = np.ndarray[Any, np.dtype[Any]]
"""Values of rows, on the host."""

_MOST_WIDE = 2**22
"""Elements of a sweep up to which its columns are stored as wide as its parameters on a GPU."""

_VECTOR = 32 if torch.backends.cpu.get_cpu_capability() in ("DEFAULT", "AVX2") else 64  # bytes


@dataclass(frozen=True)
class Rule:
    """The part of an update rule on which the rows of a slab must agree.

    Attributes:
        sweep: the class that carries out the update.
        options: its switches.
        states: the names of the optimizer's per-element states, in torch's order.
        counted: whether the optimizer counts a parameter's steps.
        in_step: whether the rows of a slab must have made the same number of steps.
    """

    sweep: "type[Sweep]"
    options: tuple[Any, ...] = ()
    states: tuple[str, ...] = ()
    counted: bool = True
    in_step: bool = False


@dataclass(slots=True)
class Row:
    """One parameter that is stepped with others.

    Attributes:
        position: its row in the stack.
        member: the member that owns it.
        slot: the number of its param group among those of all members.
        kept: its optimizer state so far.
        age: the number of steps made before it was added; if its rule does not count them, whether there were any.
        views: its optimizer state from now on, by name, in torch's order.
    """

    position: int
    member: int
    slot: int
    parameter: nn.Parameter
    rule: Rule
    kept: dict[str, torch.Tensor]
    age: float
    views: dict[str, torch.Tensor] = field(default_factory=dict)


class Slab:
    """Rows of one stack that share a rule.

    Args:
        stack: position of the stack.
        whole: all parameters of the stack, `[N, k]`.
        rows: at least one, sorted by position; of equal age if their rule is `in_step`. Their `views` are set.
    """

    def __init__(self, stack: int, whole: torch.Tensor, rows: Sequence[Row]):
        self.stack = stack
        self.rows = rows
        self.rule = rows[0].rule
        self.slots = [row.slot for row in rows]
        self.ages = [row.age for row in rows]
        self.steps = int(rows[0].age) if self.rule.in_step else 0  # counted from here if not in step
        self.whole = whole
        self._shape = (len(rows), whole.shape[1])
        first, last = rows[0].position, rows[-1].position
        self.is_copied = last - first != len(rows) - 1
        self._is_whole = len(rows) == len(whole)
        self._positions = torch.tensor([row.position for row in rows], device=whole.device)
        self._parameters = whole[first : last + 1]
        self.state = {name: self.zeros() for name in self.rule.states}
        for name, matrix in self.state.items():
            self._lay(name, matrix)

    @property
    def size(self) -> int:
        """The number of elements of all rows."""
        return self._shape[0] * self._shape[1]

    @cached_property
    def scratch(self) -> torch.Tensor:
        """Temporary memory for one matrix `[n, k]`, zeros at first."""
        return self.zeros()

    def parameters(self) -> torch.Tensor:
        """Return the rows `[n, k]`: a view, or a copy if they are not adjacent."""
        return self.of(self.whole) if self.is_copied else self._parameters

    def write(self, parameters: torch.Tensor) -> None:
        """Write a copy of the rows back."""
        self.whole.index_copy_(0, self._positions, parameters)

    def of(self, matrix: torch.Tensor) -> torch.Tensor:
        """Return the slab's rows `[n, k]` of a matrix `[N, k]`."""
        if self._is_whole:
            return matrix
        if self.is_copied:
            return matrix.index_select(0, self._positions)
        return matrix.narrow(0, self.rows[0].position, len(self.rows))

    def zeros(self) -> torch.Tensor:
        """Return zeros `[n, k]`, in memory padded to a whole vector register."""
        padded = self.size + _rest(self.size, self.whole)
        return self.whole.new_zeros(padded)[: self.size].view(self._shape)

    @staticmethod
    def padded(matrix: torch.Tensor) -> torch.Tensor:
        """Return a matrix from `zeros` flat and with its padding; unchanged on a GPU, or if it has no padding."""
        rest = _rest(matrix.numel(), matrix) if matrix.is_cpu else 0
        return matrix.as_strided((matrix.numel() + rest,), (1,)) if rest else matrix

    def _lay(self, name: str, matrix: torch.Tensor) -> None:
        like = self.rows[0].parameter
        views = matrix.as_strided((len(self.rows), *like.shape), (matrix.shape[1], *like.stride())).unbind(0)
        for row, view in zip(self.rows, views, strict=True):
            row.views[name] = view
            if name in row.kept:
                view.copy_(row.kept[name])


def _rest(size: int, like: torch.Tensor) -> int:
    """Return how many elements of padding fill the last vector register."""
    return -size % (_VECTOR // like.element_size())


def states_of(optimizers: Iterable[torch.optim.Optimizer]) -> list[Any]:
    """Return the dicts of optimizers' states, and all that they hold."""
    states = [optimizer.state for optimizer in optimizers]
    inner = [*chain.from_iterable(map(dict.values, states))]
    return [*states, *inner, *chain.from_iterable(map(dict.values, inner))]


def lay_counts(
    rows: Iterable[Row], groups: Sequence[dict[str, Any]], default: torch.dtype
) -> list[tuple[torch.Tensor, list[Row]]]:
    """Return vectors of step counts, one per dtype and device that torch uses for them, each with its rows.

    Args:
        groups: the param groups, by slot.
        default: the dtype of counts that begin, but for fused optimizers.
    """
    alike: dict[tuple[torch.dtype, torch.device], list[Row]] = {}
    for row in rows:
        if (step := row.kept.get("step")) is not None:
            kind = (step.dtype, step.device)
        elif groups[row.slot].get("fused"):
            kind = (torch.float32, row.parameter.device)
        else:
            kind = (default, torch.device("cpu"))
        alike.setdefault(kind, []).append(row)
    vectors = []
    for (dtype, device), of in alike.items():
        steps = torch.tensor([row.age for row in of], dtype=dtype, device=device)
        for row, view in zip(of, steps.unbind(0), strict=True):
            row.views["step"] = view
        vectors.append((steps, of))
    return vectors


def make_slabs(stack: int, whole: torch.Tensor, rows: Iterable[Row]) -> list[Slab]:
    """Return the slabs of one stack."""
    alike: dict[Hashable, list[Row]] = {}
    for row in rows:
        alike.setdefault((row.rule, row.age if row.rule.in_step else None), []).append(row)
    return [Slab(stack, whole, of) for of in alike.values()]


def is_wide(slabs: Sequence[Slab]) -> bool:
    """Whether columns are stored as wide as the parameters: launches cost a GPU more than reading these few again."""
    return slabs[0].whole.is_cuda and sum(slab.size for slab in slabs) <= _MOST_WIDE


class Sweep(ABC):
    """Base class of updates of several slabs; `read` must be called first.

    What follows from hyper-parameters is computed on the host and written to memory that stays where it is, so neither
    a step nor a schedule waits for the device.

    Args:
        slabs: slabs of one rule, dtype and device, with equal `steps` and `shared` hyper-parameters.

    Attributes:
        form: what decides on the host which operations an update makes, and with which numbers.
        is_wide: whether columns of floats have the shapes of the slabs.
    """

    form: Hashable = None

    def __init__(self, slabs: Sequence[Slab]):
        self.slabs = slabs
        self.options = slabs[0].rule.options
        self.slots = np.array([slot for slab in slabs for slot in slab.slots])
        self.ages = np.array([age for slab in slabs for age in slab.ages])
        self._used = set(self.slots)
        self._sizes = [len(slab.rows) for slab in slabs]
        self._placed: dict[str, torch.Tensor] = {}
        self._wide: dict[str, list[torch.Tensor]] = {}
        self.is_wide = is_wide(slabs)
        self._count: torch.Tensor | None = None
        self._parameters = [slab.parameters() for slab in slabs]
        self._copied = [(i, slab) for i, slab in enumerate(slabs) if slab.is_copied]
        self.groups: Sequence[dict[str, Any]] = []

    @staticmethod
    def shared(group: dict[str, Any]) -> Hashable:
        """Return the hyper-parameters on which all slabs of a sweep must agree."""
        return None

    def read(self, groups: Sequence[dict[str, Any]]) -> None:
        """Read the hyper-parameters from the param groups, indexed by slot."""
        self.groups = groups
        self.prepare()

    @abstractmethod
    def prepare(self) -> None:
        """Compute what depends only on the hyper-parameters."""

    @abstractmethod
    def update(self, parameters: list[torch.Tensor], grads: list[torch.Tensor]) -> None:
        """Step the rows, given as a matrix `[n, k]` per slab. The gradients may be overwritten."""

    def run(self, grads: Sequence[torch.Tensor | None]) -> None:
        """Step all rows by their gradients, given as a matrix `[N, k]` per stack. It does not count their `steps`."""
        for i, slab in self._copied:
            self._parameters[i] = slab.parameters()
        self.update(self._parameters, [slab.of(grads[slab.stack]) for slab in self.slabs])  # type: ignore[arg-type]
        for i, slab in self._copied:
            slab.write(self._parameters[i])
        if self._count is not None:
            self._count.add_(1)

    @property
    def next_step(self) -> int:
        """The number of the next step, from 1."""
        return self.slabs[0].steps + 1

    def count(self, dtype: torch.dtype) -> torch.Tensor:
        """Return the number of the next step as a scalar on the device; it goes on by itself."""
        if self._count is None:
            self._count = torch.full((), self.next_step, dtype=dtype, device=self.slabs[0].whole.device)
        return self._count

    def states(self, name: str) -> list[torch.Tensor]:
        """Return the optimizer state of a name, one matrix per slab."""
        return [slab.state[name] for slab in self.slabs]

    def scratch(self) -> list[torch.Tensor]:
        """Temporary memory, one matrix per slab. It is kept between steps, so that steps allocate nothing."""
        return [slab.scratch for slab in self.slabs]

    def values(self, value: Callable[[dict[str, Any]], Any]) -> Numbers:
        """Return a hyper-parameter of every row, `[rows of all slabs]`, in double precision, on the host."""
        by_slot = [float(value(group)) if slot in self._used else 0.0 for slot, group in enumerate(self.groups)]
        found: Numbers = np.array(by_slot)[self.slots]
        return found

    def columns(self, name: str, values: Numbers) -> list[torch.Tensor]:
        """Return a value of every row as `[n, 1]` per slab, in the parameters' dtype unless it is a bool.

        Later values of that name are written to the same memory. If the sweep `is_wide`, floats are `[n, k]`: torch
        makes one launch of an operation on lists only where the tensors of both have the same shapes.
        """
        dtype = torch.bool if values.dtype == bool else self.slabs[0].whole.dtype
        columns = self.split(self.placed(name, values, dtype))
        if dtype == torch.bool or not self.is_wide:
            return columns
        if name not in self._wide:
            self._wide[name] = [slab.zeros() for slab in self.slabs]
        for wide, column in zip(self._wide[name], columns, strict=True):
            wide.copy_(column)
        return self._wide[name]

    def multiply(self, xs: list[torch.Tensor], columns: list[torch.Tensor], out: list[torch.Tensor]) -> None:
        """Write the products of matrices and columns to `out`."""
        if self.is_wide:
            torch._foreach_copy_(out, xs)
            torch._foreach_mul_(out, columns)
            return
        for x, column, product in zip(xs, columns, out, strict=True):
            torch.mul(x, column, out=product)

    def placed(self, name: str, values: Numbers, dtype: torch.dtype) -> torch.Tensor:
        """Return values on the device. Later ones of that name, and of the same shape, are written to their memory."""
        host = torch.from_numpy(values).to(dtype)
        if name not in self._placed:
            self._placed[name] = torch.empty_like(host, device=self.slabs[0].whole.device)
        copy_over(self._placed[name], host)
        return self._placed[name]

    def split(self, values: torch.Tensor) -> list[torch.Tensor]:
        """Return a value of every row as `[n, 1]` per slab."""
        return list(torch.split(values.unsqueeze(1), self._sizes))
