"""Candidates on a GPU that one of them makes unusable; a stand-in for a card, on a CPU."""

import torch
from torch import nn

FAULT = "CUDA error: device-side assert triggered"
FLAWED = 3  # the width of the candidate with the flaw
_TRAINED = 6  # steps before that


class Kernel(nn.Module):
    """Passes `[B, F]` through. The flawed one fails as a kernel does: that comes up in a later call, of anyone."""

    def __init__(self, flawed: bool):
        super().__init__()
        self.flawed = flawed
        self.register_buffer("steps", torch.tensor(0))  # saved: it fails at the same step each time

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.steps += self.training
        if torch.cuda.synchronize is poisoned:  # whoever's code this is
            poisoned()
        if self.flawed and self.steps > _TRAINED:
            torch.cuda.is_initialized = lambda: True
            torch.cuda.synchronize = poisoned
        return x


def poisoned() -> None:
    """Raise what any call does once the context is lost."""
    raise RuntimeError(f"{FAULT}\nCUDA kernel errors might be reported at some other API call")


def build(pick) -> nn.Module:
    width = pick("width", [1, 2, 3, 4, 5])
    return nn.Sequential(nn.Linear(64, width), Kernel(width == FLAWED), nn.Linear(width, 10))
