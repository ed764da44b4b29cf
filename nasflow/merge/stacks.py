"""Members' tensors laid side by side: the members' own become views of the rows."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

OwnCode = Callable[[int, Callable[[], Any]], Any]


class LeftError(Exception):
    """A member's own code did not run to its end: it has left, now or before."""


@dataclass(frozen=True)
class ParameterStack:
    """Parameters of several members as one leaf of autograd.

    Attributes:
        tensor: `[n, ...]`; its rows are the storage of the members' parameters.
        parameters: the members' own.
        members: whose each row is, as positions in the unit.
    """

    tensor: torch.Tensor
    parameters: tuple[nn.Parameter, ...]
    members: tuple[int, ...]


@dataclass
class Bench:
    """What a kernel is built with.

    Attributes:
        members: whose each row is, as positions in the unit.
        streams: a member's random stream, in force inside `with`.
        generators: a member's generator of torch's random numbers on the CPU.
        own_code: runs code of a member's own, given its position, and gives what that gives. Raises `LeftError` if it
            fails, or if the member is no longer there; the others go on without it.
        stacks: where the kernel's parameters end up.
    """

    members: tuple[int, ...]
    streams: Sequence[AbstractContextManager[Any]]
    generators: Sequence[torch.Generator]
    own_code: OwnCode
    stacks: list[ParameterStack] = field(default_factory=list)

    def lay(self, tensors: Sequence[torch.Tensor | None], channels_last: bool = False) -> torch.Tensor | None:
        """The members' tensors as rows `[n, ...]`; None where they have none. Rows `[O, I, H, W]` may lie I last."""
        rows = [tensor for tensor in tensors if tensor is not None]
        if not rows:
            return None
        with torch.no_grad():
            stacked = torch.stack(rows)
            if channels_last and stacked.ndim == 5:
                stacked = stacked.permute(0, 1, 3, 4, 2).contiguous().permute(0, 1, 4, 2, 3)
            for row, place in zip(rows, stacked.unbind(0), strict=True):
                row.data = place
        if isinstance(rows[0], nn.Parameter) and rows[0].requires_grad:
            parameters: Any = tuple(rows)  # equal signatures: if one trains, all do
            stacked.requires_grad_()
            self.stacks.append(ParameterStack(stacked, parameters, self.members))
        return stacked
