"""The contract of an evaluator: how one candidate is trained and scored."""

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from torch import nn

from nasflow.config.search import TrainingConfig

if TYPE_CHECKING:
    from pytorch_lightning import LightningModule


class Evaluator(ABC):
    """Turns a candidate's model into a LightningModule that knows its loss, optimizer and metrics.

    The module is an ordinary one that a plain Lightning Trainer can train too. In a job, nasflow trains it beside other
    members (`nasflow.training.member.member` lists which hooks are called). Objectives and early stopping refer to the
    names under which it `log`s its metrics.

    Args:
        config: a closed config, in which every searched value is chosen.
    """

    def __init__(self, config: TrainingConfig):
        self.config = config

    @abstractmethod
    def module(self, model: nn.Module) -> "LightningModule":
        """Return the LightningModule that trains `model`, and holds it under any name, whole or in parts."""
