"""Layers with a searched shape, named as in NNI's Retiarii and based on `pick`."""

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import torch
from torch import nn

from nasflow.errors import SpaceError
from nasflow.space.pick import Pick

Factory = Callable[[], nn.Module]
"""Makes a layer; called only if the layer is chosen."""


def LayerChoice(  # noqa: N802  # used like a layer's class
    pick: Pick, label: str, candidates: Mapping[str, Factory] | Sequence[Factory]
) -> nn.Module:
    """One of several layers, each made by a factory without arguments: `{"conv": lambda: nn.Conv2d(...), ...}`.

    The architecture stores the key, or the position in a sequence. Only the chosen layer is made, so candidates cost
    neither memory nor random numbers.

    Raises:
        SpaceError: the chosen factory did not give a module.
    """
    layer = pick(label, candidates if isinstance(candidates, Mapping) else dict(enumerate(candidates)))
    if not isinstance(layer, nn.Module):
        raise SpaceError(f"label '{label}': each candidate should be a factory of a torch.nn.Module, not of {layer!r}")
    return layer


def Repeat(  # noqa: N802  # used like a layer's class
    pick: Pick, label: str, block: Callable[[int], nn.Module], depth: tuple[int, int] | int
) -> nn.Sequential:
    """`block(0)`, `block(1)`, ... in sequence, `depth` of them: a number, or `(least, most)` to search.

    A label asked inside `block` is one choice for all blocks; put the block's index into the label to vary it.
    """
    count = depth if isinstance(depth, int) else pick.int(label, *depth)
    return nn.Sequential(*(block(index) for index in range(count)))


class InputChoice(nn.Module):
    """Takes `n_chosen` of `n_candidates` tensors and joins them.

    Args:
        reduction: `sum` and `mean` need equal shapes and keep them, `[B, ...]`; `concat` joins along dimension
            `concat_dim`; `none` gives the list. A single chosen tensor is returned as it is, except with `none`.
    """

    def __init__(
        self,
        pick: Pick,
        label: str,
        n_candidates: int,
        n_chosen: int = 1,
        *,
        reduction: Literal["sum", "mean", "concat", "none"] = "sum",
        concat_dim: int = 1,
    ):
        super().__init__()
        if reduction not in ("sum", "mean", "concat", "none"):
            raise SpaceError(f"label '{label}': reduction should be sum, mean, concat or none, not {reduction!r}")
        places = range(n_candidates)
        self.chosen = [pick(label, places)] if n_chosen == 1 else pick.subset(label, places, n_chosen)
        self.reduction = reduction
        self.concat_dim = concat_dim

    def forward(self, inputs: Sequence[torch.Tensor]) -> torch.Tensor | list[torch.Tensor]:
        """Join the chosen ones of `n_candidates` tensors `[B, ...]`."""
        taken = [inputs[place] for place in self.chosen]
        if self.reduction == "none":
            return taken
        if len(taken) == 1:
            return taken[0]
        if self.reduction == "concat":
            return torch.cat(taken, self.concat_dim)
        total = add(taken)
        return total / len(taken) if self.reduction == "mean" else total

    def extra_repr(self) -> str:
        """Return the text that `print` shows in parentheses."""
        return f"chosen={self.chosen}, reduction={self.reduction}"


def add(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the sum of one or more tensors of one shape, added in order."""
    total = tensors[0]
    for tensor in tensors[1:]:
        total = total + tensor
    return total
