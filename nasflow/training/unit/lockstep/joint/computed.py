"""What a joint step has computed."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch


@dataclass(frozen=True)
class Computed:
    """What a step has computed, for all members.

    Attributes:
        losses: `[n]`; None if there is none.
        gradients: of the losses by the models' outputs, `[n, B, ...]`; None if autograd has still to compute them.
        logged: by name, values `[n]` times their weight.
        weights: of these.
        states: of metrics, by their name and the state's, `[n, ...]`.
        updates: how often each metric was updated.
        metrics: metrics that were logged: their names, by the name in the log.
    """

    losses: torch.Tensor | None
    logged: Mapping[str, torch.Tensor]
    weights: Mapping[str, int]
    states: Mapping[str, Mapping[str, torch.Tensor]]
    updates: Mapping[str, int]
    metrics: Mapping[str, str] = field(default_factory=dict)
    gradients: torch.Tensor | None = None

    def tensors(self) -> list[torch.Tensor]:
        """Return all tensors, in the order of `losses`, `gradients`, `logged`, and `states`."""
        found = [tensor for tensor in (self.losses, self.gradients) if tensor is not None]
        return [*found, *self.logged.values(), *(value for own in self.states.values() for value in own.values())]

    def of_row(self, row: int) -> torch.Tensor:
        """Return all numbers of one member, but its gradients, in one tensor."""
        found = [tensor for tensor in self.tensors() if tensor is not self.gradients]
        return torch.cat([value[row].detach().double().reshape(-1) for value in found] or [torch.zeros(0)])
