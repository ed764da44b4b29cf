"""The scale of a member's losses in half precision, without which its small gradients would be zero."""

import math
from collections.abc import Sequence
from typing import Any

import torch

from nasflow.errors import TrialError

_GROWTH_INTERVAL = 2000
_LEAST = 2.0**-14  # below it, other gradients are the cause, as fairseq's default of 1e-4 has it
_MOST = 2.0**127


class LossScale:
    """Does what `torch.amp.GradScaler` does with its defaults, in plain numbers: a unit of members needs no tensors.

    Attributes:
        value: what losses are multiplied by before their backward.
    """

    def __init__(self) -> None:
        self.value = 65536.0
        self._finite_steps = 0  # since the scale has changed

    def unscale(self, gradients: Sequence[torch.Tensor]) -> bool:
        """Divide gradients by the scale in place. Return whether one of them was not finite: then skip the step."""
        values = [gradient._values() if gradient.is_sparse else gradient for gradient in gradients]
        values = [value for value in values if value.numel()]
        if not values:
            return False
        overflows = not bool(torch.isfinite(torch.nn.utils.get_total_norm(values, math.inf)))
        torch._foreach_mul_(values, 1 / self.value)
        return overflows

    def update(self, overflows: bool) -> None:
        """Halve the scale after a step that was skipped; double it after 2000 others.

        Raises:
            TrialError: the scale is so small that it can't be the cause.
        """
        if overflows:
            self.value, self._finite_steps = self.value / 2, 0
            if self.value < _LEAST:
                raise TrialError(
                    "gradients are not finite, whatever the losses are scaled by (evaluator.precision: 16-mixed); use "
                    "bf16-mixed or 32-true to see where they come from"
                )
            return
        self._finite_steps += 1
        if self._finite_steps == _GROWTH_INTERVAL:
            self.value, self._finite_steps = min(2 * self.value, _MOST), 0

    def state_dict(self) -> dict[str, Any]:
        """Return the scale, and the steps since it has changed."""
        return {"scale": self.value, "finite_steps": self._finite_steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state."""
        self.value, self._finite_steps = state["scale"], state["finite_steps"]
