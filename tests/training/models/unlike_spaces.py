"""Members of several kinds, for rows `[B, 6]` of three classes."""

import torch
from torch import nn

from nasflow.space.pick import Pick
from tests.training.models.spaces import Fault


class Recurrent(nn.Module):
    """Reads a row as three steps of two numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.GRU(2, 5, batch_first=True), nn.Linear(5, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.layer(x.view(len(x), 3, 2))[0][:, -1])
        return out


class Opaque(nn.Module):
    """Looks at values, which a trace can't."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.sum() > 0 else x - 1


def hooked() -> nn.Module:
    first = nn.Linear(6, 8)
    first.register_forward_hook(lambda module, args, output: 2 * output)
    return nn.Sequential(first, nn.Tanh(), nn.Linear(8, 3))


KINDS = {
    "narrow": lambda: nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Dropout(0.1), nn.Linear(4, 3)),
    "wide": lambda: nn.Sequential(nn.Linear(6, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 3)),
    "recurrent": Recurrent,
    "opaque": lambda: nn.Sequential(Opaque(), nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)),
    "hooked": hooked,
    "nan": lambda: nn.Sequential(Fault("nan", 2, training=True), KINDS["narrow"]()),
}


def unlike(pick: Pick) -> nn.Module:
    """A model of the picked kind; those of `nan` fail in their second step."""
    return KINDS[pick("kind", list(KINDS))]()
