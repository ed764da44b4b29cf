"""Stacks members' tensors: each member's own tensors become views of the rows."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

OwnCode = Callable[[int, Callable[[], Any]], Any]


class LeftError(Exception):
    """Raised when a member's own code fails, or when the member has already left."""


@dataclass(frozen=True)
class ParameterStack:
    """Parameters of several members as one autograd leaf.

    Attributes:
        tensor: `[n, ...]`; its rows are the storage of the members' parameters.
        parameters: the members' own parameters.
        members: the member of each row, as a position in the unit.
    """

    tensor: torch.Tensor
    parameters: tuple[nn.Parameter, ...]
    members: tuple[int, ...]


class Shelf:
    """The stacks of a unit. A tensor is in at most one of them: kernels that use the same tensors share the stack.

    Attributes:
        stacks: those that are trained.
    """

    def __init__(self) -> None:
        self.stacks: list[ParameterStack] = []
        self._laid: dict[tuple[int, ...], tuple[torch.Tensor, ParameterStack | None]] = {}
        self._rows: dict[int, torch.Tensor] = {}  # by id; kept alive, so that ids are not reused

    def lay(
        self, rows: Sequence[torch.Tensor], members: tuple[int, ...], channels_last: bool
    ) -> tuple[torch.Tensor, ParameterStack | None]:
        """Return the stacked tensors, and their `ParameterStack` if they are trained, else None.

        Raises:
            ValueError: some of them, but not all in this order, are in a stack already.
        """
        key = tuple(map(id, rows))
        if key not in self._laid:
            if not self._rows.keys().isdisjoint(key):
                raise ValueError("a tensor that several layers use can't be in two stacks")
            self._rows.update(zip(key, rows, strict=True))
            self._laid[key] = self._lay(rows, members, channels_last)
        return self._laid[key]

    def _lay(
        self, rows: Sequence[torch.Tensor], members: tuple[int, ...], channels_last: bool
    ) -> tuple[torch.Tensor, ParameterStack | None]:
        with torch.no_grad():
            stacked = torch.stack(list(rows))
            if channels_last and stacked.ndim == 5:
                stacked = stacked.permute(0, 1, 3, 4, 2).contiguous().permute(0, 1, 4, 2, 3)
            for row, place in zip(rows, stacked.unbind(0), strict=True):
                row.data = place
        if not isinstance(rows[0], nn.Parameter) or not rows[0].requires_grad:
            return stacked, None
        parameters: Any = tuple(rows)  # equal signatures: if one is trained, all are
        stack = ParameterStack(stacked.requires_grad_(), parameters, members)
        self.stacks.append(stack)
        return stacked, stack


@dataclass
class Bench:
    """What a kernel is built with.

    Attributes:
        members: the member of each row, as a position in the unit.
        streams: a member's random stream, active inside `with`.
        generators: a member's torch generator for random numbers on the CPU.
        own_code: runs a member's own code, given its position, and returns the result. Raises `LeftError` if the code
            fails, or if the member has left; the others continue without it.
        shelf: holds the unit's stacks.
        stacks: those that the kernel trains.
    """

    members: tuple[int, ...]
    streams: Sequence[AbstractContextManager[Any]]
    generators: Sequence[torch.Generator]
    own_code: OwnCode
    shelf: Shelf = field(default_factory=Shelf)
    stacks: list[ParameterStack] = field(default_factory=list)

    def lay(self, tensors: Sequence[torch.Tensor | None], channels_last: bool = False) -> torch.Tensor | None:
        """Return the members' tensors as rows `[n, ...]`, None if there are none. Rows `[O, I, H, W]` may be I last."""
        rows = [tensor for tensor in tensors if tensor is not None]
        if not rows:
            return None
        stacked, stack = self.shelf.lay(rows, self.members, channels_last)
        if stack is not None:
            self.stacks.append(stack)
        return stacked
