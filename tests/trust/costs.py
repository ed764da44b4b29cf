"""Costs drawn at random: the planner then chooses every kernel and every layout, on any machine."""

import random
from typing import Any

import torch

from nasflow.merge.kernels.base import Kernel
from nasflow.merge.kernels.loop import Loop
from nasflow.merge.planning.cost_model import CostModel, describe
from nasflow.merge.trace.node import Node
from nasflow.merge.values.layout import Layout

_can_run: dict[tuple[Any, ...], bool] = {}


class RandomCosts(CostModel):
    """A cost model that knows what can run, and draws what it costs.

    Args:
        seed: of the costs.
        loop: the factor by which the loop costs more.
    """

    def __init__(self, device: torch.device, seed: int, loop: float):
        super().__init__(device)
        self._known = {}
        self._seed, self._loop = seed, loop

    def kernel(self, kernel: type[Kernel], node: Node, rows: int, shared: bool) -> float:
        key = (kernel, describe(node), rows, shared)
        if kernel is not Loop and key not in _can_run:
            _can_run[key] = self._measure(kernel, node, rows, shared) < float("inf")
        if not _can_run.get(key, True):
            return float("inf")
        return self._drawn(kernel.__name__, *key[1:]) * (self._loop if kernel is Loop else 1.0)

    def gather(self, layout: Layout, numbers: int) -> float:
        return self._drawn("gather", layout.value, numbers)

    def step(self) -> float:
        """Return more than all kernels of a unit cost, so that members form as few units as possible."""
        return 1.0

    def save(self) -> None:
        """Do nothing: random costs are not kept."""

    def _drawn(self, *of: Any) -> float:
        return float(10 ** random.Random(repr((self._seed, *of))).uniform(-6, -4))


def once(run: Any, device: torch.device) -> float:
    """Replace `nasflow.merge.planning.cost_model._fastest`: one try is enough."""
    run()
    return 0.0
