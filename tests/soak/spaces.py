"""A space of small networks that wait in each step, so that a search takes long without using the processor."""

import time

from torch import nn


class Waits(nn.Module):
    """Passes `[B, F]` through after some seconds."""

    def __init__(self, delay: float):
        super().__init__()
        self.delay = delay

    def forward(self, x):
        time.sleep(self.delay)
        return x


def waiting(pick, delay):
    """A network for wines; its `number` makes it one of many."""
    pick.int("number", 0, 10**6)
    return nn.Sequential(nn.Linear(13, 8), nn.ReLU(), Waits(delay), nn.Linear(8, 3))
