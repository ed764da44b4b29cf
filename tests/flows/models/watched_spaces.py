"""Spaces for tests in which people watch a search: candidates that work at their second retry, or wait for leave."""

import time
from pathlib import Path

from flaky_spaces import Flaky
from torch import nn

_PATIENCE = 600.0  # seconds; whoever shut a gate and died leaves no job behind for longer


class Gate(nn.Module):
    """Passes `[B, F]` through as soon as there is a file; in training only, so that a look at it takes no time."""

    def __init__(self, file):
        super().__init__()
        self.file = Path(file)

    def forward(self, x):
        deadline = time.monotonic() + _PATIENCE
        while self.training and not self.file.exists():
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.file} never came")
            time.sleep(0.05)
        return x


def gated(pick, gate):
    """Networks for digits in rows that are trained once the file `gate` is there."""
    width = pick("width", list(range(8, 40)))
    return nn.Sequential(nn.Linear(64, width), Gate(gate), nn.ReLU(), nn.Linear(width, 10))


def unlucky(pick, marks, unlucky=24):
    """Networks for digits in rows; those of one width fail in their batch and in their first job alone."""
    width = pick("width", [16, 24, 32, 48])
    activation = pick("activation", {"relu": nn.ReLU, "gelu": nn.GELU, "tanh": nn.Tanh})
    layers = [nn.Linear(64, width), activation, nn.Linear(width, 10)]
    if width == unlucky:
        own = Path(marks) / type(activation).__name__
        own.mkdir(parents=True, exist_ok=True)
        layers.insert(0, Flaky(own, failures=2))
    return nn.Sequential(*layers)
