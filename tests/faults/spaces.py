"""The space of the searches that faults are injected into: some of its candidates are ill-behaved."""

import time

import torch
from torch import nn


class Conduct(nn.Module):
    """Passes `[B, F]` through, slowly, or misbehaves after `steps` steps of training."""

    def __init__(self, kind: str, steps: int, delay: float):
        super().__init__()
        self.kind, self.after, self.delay = kind, steps, delay
        self.register_buffer("steps", torch.tensor(0))  # saved, so that a retry fails at the same step

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep(self.delay)
        self.steps += self.training
        if self.kind == "stuck":
            return 0 * x
        if self.steps > self.after:
            if self.kind == "raise":
                raise ValueError("this candidate always raises")
            if self.kind == "nan":
                return x * float("nan")
        return x


def conducts(pick, kinds, steps=12, delay=0.005):
    """A small network for wines; its `number` says how it behaves."""
    number = pick("number", list(range(len(kinds))))
    return nn.Sequential(
        nn.Linear(13, 16), nn.Dropout(0.1), nn.ReLU(), Conduct(kinds[number], steps, delay), nn.Linear(16, 3)
    )
