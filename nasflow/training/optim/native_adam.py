"""Adam and AdamW in one pass over memory, with hyper-parameters and step counts that differ from row to row."""

from collections.abc import Sequence

import numpy as np
import torch

from nasflow.native import adam_step
from nasflow.training.optim.parameter_rows import Slab, Sweep


class NativeAdam(Sweep):
    """Adam and AdamW for float32 on one core; options are (decoupled weight decay,)."""

    def __init__(self, slabs: Sequence[Slab]):
        super().__init__(slabs)
        self._step = adam_step()  # `rule_of` asked whether there is one
        self._hyper = np.empty((len(self.slots), 6))
        self._hyper[:, 5] = self.ages
        first, row_bytes = self._hyper.ctypes.data, self._hyper.strides[0]
        self._places: list[tuple[int, ...]] = []
        for means, squares in zip(self.states("exp_avg"), self.states("exp_avg_sq"), strict=True):
            self._places.append((means.data_ptr(), squares.data_ptr(), first, *means.shape))
            first += row_bytes * len(means)

    def prepare(self) -> None:
        """Compute what depends only on the hyper-parameters."""
        self._hyper[:, 0] = self.values(lambda group: group["lr"])
        self._hyper[:, 1] = self.values(lambda group: group["betas"][0])
        self._hyper[:, 2] = self.values(lambda group: group["betas"][1])
        self._hyper[:, 3] = self.values(lambda group: group["eps"])
        self._hyper[:, 4] = self.values(lambda group: group["weight_decay"])

    def update(self, parameters: list[torch.Tensor], grads: list[torch.Tensor]) -> None:
        """Step the rows."""
        step, decoupled = float(self.next_step), int(self.options[0])
        for parameter, grad, places in zip(parameters, grads, self._places, strict=True):
            self._step(parameter.data_ptr(), grad.data_ptr(), *places, step, decoupled)
