"""W5: a module that fails its training at a given step, always the same one, also after it is resumed."""

import os

import torch
from torch import nn

KINDS = ("none", "idle", "nan", "raise", "memory", "exit")


class Fault(nn.Module):
    """Passes logits on until training step `at` (from 0), then fails as `kind` says.

    The steps are counted in a buffer, so that a checkpoint brings the count back. The branch depends on that value,
    which no tracer of graphs can see through.

    Args:
        kind: make the logits `nan`, `raise` an exception, ask for an absurd amount of `memory`, `exit` the process
            without a word, or stay `idle`.
    """

    steps: torch.Tensor

    def __init__(self, kind: str, at: int):
        super().__init__()
        self.kind = kind
        self.at = at
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """`x` itself, or what is left of it."""
        if not self.training:
            return x
        due = int(self.steps) >= self.at and self.kind != "idle"
        self.steps += 1
        return self._fail(x) if due else x

    def _fail(self, x: torch.Tensor) -> torch.Tensor:
        if self.kind == "raise":
            raise RuntimeError(f"this member always fails at step {self.at}")
        if self.kind == "memory":
            x.new_empty(2**50)
        if self.kind == "exit":
            os._exit(3)
        return x * float("nan")
