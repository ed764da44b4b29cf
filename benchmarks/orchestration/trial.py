"""nasflow's almost empty trial: a linear layer, trained for one step on eight rows and scored on the same rows."""

import torch
from torch import nn

from nasflow.evaluator.loading.loaders import TensorLoader
from nasflow.space.pick import Pick

ROWS, FEATURES, CLASSES = 8, 4, 2


def build(pick: Pick) -> nn.Module:
    """Return a model from rows `[B, 4]` to logits `[B, 2]`; only the learning rate, in the evaluator, is searched."""
    return nn.Linear(FEATURES, CLASSES)


def rows() -> tuple[TensorLoader, TensorLoader]:
    """Return the same eight rows for training and scoring."""
    inputs = torch.linspace(-1, 1, ROWS * FEATURES).reshape(ROWS, FEATURES)
    tensors = (inputs, torch.arange(ROWS) % CLASSES)
    return TensorLoader(tensors, ROWS), TensorLoader(tensors, ROWS)
