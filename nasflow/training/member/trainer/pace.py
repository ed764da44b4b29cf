"""On which batches a member's optimizer steps."""

import math

from nasflow.errors import ConfigError


class Pace:
    """Optimizer steps of several batches each, as Lightning's `accumulate_grad_batches`.

    Attributes:
        accumulated: batches of a step; the last step of an epoch may have fewer.
        batches: training batches of an epoch; infinite as long as that is not known.
    """

    def __init__(self, accumulated: int):
        self.accumulated = accumulated
        self.batches = math.inf

    def refuse_unknown(self) -> None:
        """Raise ConfigError if it is not known which batch of an epoch is the last, and that matters."""
        if self.accumulated > 1 and self.batches == math.inf:
            raise ConfigError(
                "evaluator.accumulate_grad_batches: the training loader does not know its length, and so not which "
                "batch is an epoch's last; give the loader a __len__"
            )

    def is_first(self, index: int) -> bool:
        """Whether the batch of this number, from 0 in each epoch, is the first of a step."""
        return index % self.accumulated == 0

    def is_last(self, index: int) -> bool:
        """Whether it is the last of a step."""
        return (index + 1) % self.accumulated == 0 or index + 1 >= self.batches
