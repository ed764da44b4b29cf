"""The contract of an evaluator: how one candidate is trained and scored."""

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from torch import nn

from nasflow.config.search import TrainingConfig

if TYPE_CHECKING:
    from pytorch_lightning import LightningModule


class Evaluator(ABC):
    """Turns a candidate's model into a LightningModule that knows its loss, optimizer and metrics.

    The module is an ordinary one and trains in a plain Lightning Trainer too. Inside a job nasflow drives it, beside
    other members (`nasflow.training.member.member` lists which hooks are called). It names its metrics as it `log`s
    them; objectives and early stopping refer to those names.

    Args:
        config: with its searched values closed.
    """

    def __init__(self, config: TrainingConfig):
        self.config = config

    @abstractmethod
    def module(self, model: nn.Module) -> "LightningModule":
        """The LightningModule that trains `model`, which it holds as `self.model`."""
