"""A space with candidates that fail some times and then work."""

from pathlib import Path

import torch
from spaces import Behaviour
from torch import nn


class Flaky(nn.Module):
    """Passes `[B, F]` through; raises in each of its first `failures` processes, in which it comes to its 30th step."""

    def __init__(self, marks: Path, failures: int):
        super().__init__()
        self.marks, self.failures = marks, failures
        self.register_buffer("steps", torch.tensor(0))

    def forward(self, x):
        self.steps += self.training
        if self.steps > 30 and len(list(self.marks.iterdir())) < self.failures:
            (self.marks / f"failure-{len(list(self.marks.iterdir()))}").touch()
            raise ValueError("this candidate raises\nat first")
        return x


def flaky(pick, marks, kinds=("ok", "flaky", "raise"), delay=0.0):
    """A small network for digits in rows; the flaky one fails with others, then alone, then works."""
    kind = pick("kind", list(kinds))
    width = pick("width", [8])
    behaviour = Behaviour(kind, delay)
    if kind == "flaky":
        Path(marks).mkdir(exist_ok=True)
        behaviour = Flaky(Path(marks), failures=2)
    return nn.Sequential(nn.Linear(64, width), nn.ReLU(), behaviour, nn.Linear(width, 10))
