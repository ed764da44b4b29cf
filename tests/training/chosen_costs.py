"""Costs of kernels that are made up, so that jobs take paths that this machine's own figures would not lead to."""

import random

from nasflow.merge.kernels.base import Kernel
from nasflow.merge.kernels.loop import Loop
from nasflow.merge.planning.cost_model import CostModel, describe
from nasflow.merge.trace.node import Node
from nasflow.merge.values.layout import Layout


class ChosenCosts(CostModel):
    """Batched kernels cost nothing, also for one row; loops and gathers do. Kernels that can't run are not chosen."""

    def kernel(self, kernel: type[Kernel], node: Node, rows: int, shared: bool) -> float:
        measured = super().kernel(kernel, node, rows, shared)
        return measured if measured == float("inf") else self._cost(kernel, node, rows)

    def gather(self, layout: Layout, numbers: int) -> float:
        return 1e-6

    def step(self) -> float:
        return 1.0

    def _cost(self, kernel: type[Kernel], node: Node, rows: int) -> float:
        return 1e-3 * rows if kernel is Loop else 1e-6


class RandomCosts(ChosenCosts):
    """Each kernel costs something else for each operation and number of rows; units are always worth it."""

    seed = 0

    def gather(self, layout: Layout, numbers: int) -> float:
        return random.Random(f"{self.seed} {layout} {numbers}").uniform(0, 1e-3)

    def _cost(self, kernel: type[Kernel], node: Node, rows: int) -> float:
        return random.Random(f"{self.seed} {kernel.__name__} {describe(node)} {rows}").uniform(0, 1e-3)
