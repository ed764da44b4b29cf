"""Adam and AdamW in one pass over memory, with hyper-parameters and step counts that differ from row to row."""

from typing import Any

import torch

from nasflow.native import adam_step
from nasflow.training.optim.parameter_rows import Sweep


class NativeAdam(Sweep):
    """Adam and AdamW for float32 on one core; options are (decoupled weight decay,)."""

    def prepare(self) -> None:
        """Compute what depends only on the hyper-parameters."""
        self._step = adam_step()  # `rule_of` asked whether there is one
        columns = [
            self.values(lambda group: group["lr"]),
            self.values(lambda group: group["betas"][0]),
            self.values(lambda group: group["betas"][1]),
            self.values(lambda group: group["eps"]),
            self.values(lambda group: group["weight_decay"]),
            torch.cat([slab.ages for slab in self.slabs]),
        ]
        self._hyper = torch.stack(columns, dim=1).split([len(slab.rows) for slab in self.slabs])
        states = zip(self.states("exp_avg"), self.states("exp_avg_sq"), strict=True)
        self._places: list[tuple[Any, ...]] = [
            (means.data_ptr(), squares.data_ptr(), hyper.data_ptr(), *means.shape)
            for (means, squares), hyper in zip(states, self._hyper, strict=True)
        ]

    def update(self, parameters: list[torch.Tensor], grads: list[torch.Tensor]) -> None:
        """Step the rows."""
        step, decoupled = float(self.next_step), int(self.options[0])
        for parameter, grad, places in zip(parameters, grads, self._places, strict=True):
            self._step(parameter.data_ptr(), grad.data_ptr(), *places, step, decoupled)
