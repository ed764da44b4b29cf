"""W5: a module that makes training fail at a given step, the same one also after it is resumed."""

import os

import torch
from torch import nn

KINDS = ("none", "idle", "nan", "raise", "memory", "exit")


class Fault(nn.Module):
    """Passes logits on until training step `at` (from 0), then fails as `kind` says.

    The steps are counted in a buffer, so that a checkpoint restores the count. The code branches on that value, so it
    can't be traced.

    Args:
        kind: make the logits `nan`, `raise` an exception, request an impossible amount of `memory`, `exit` the process
            silently, or stay `idle`.
    """

    steps: torch.Tensor

    def __init__(self, kind: str, at: int):
        super().__init__()
        self.kind = kind
        self.at = at
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return `x`, or NaN if that is how it fails."""
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
