"""nasflow's trial that does next to nothing: a linear layer, one step on eight rows, which then score it."""

import torch
from torch import nn

from nasflow.evaluator.loaders import TensorLoader
from nasflow.space.pick import Pick

ROWS, FEATURES, CLASSES = 8, 4, 2


def build(pick: Pick) -> nn.Module:
    """Rows `[B, 4]` to logits `[B, 2]`; what varies is the learning rate, which the evaluator searches."""
    return nn.Linear(FEATURES, CLASSES)


def rows() -> tuple[TensorLoader, TensorLoader]:
    """The same eight rows to train on and to score."""
    inputs = torch.linspace(-1, 1, ROWS * FEATURES).reshape(ROWS, FEATURES)
    tensors = (inputs, torch.arange(ROWS) % CLASSES)
    return TensorLoader(tensors, ROWS), TensorLoader(tensors, ROWS)
