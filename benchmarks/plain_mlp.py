"""MLPs on digits as a user without nasflow writes them, for the programs that nasflow is measured against.

It imports torch and scikit-learn only, because it also runs in NNI's environment. The model is that of
`nasflow.space.ready:mlp`, the data that of `nasflow.evaluator.data:DigitsRows`.
"""

from collections.abc import Mapping
from typing import Any

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

ACTIVATIONS = {"relu": nn.ReLU, "gelu": nn.GELU, "tanh": nn.Tanh}
BATCH_SIZE, VALIDATION_BATCH_SIZE = 64, 256


def build_model(architecture: Mapping[str, Any]) -> nn.Module:
    """Return a model from rows `[B, 64]` to logits `[B, 10]`."""
    features = 64
    layers: list[nn.Module] = [nn.Flatten()]
    for index in range(architecture["depth"]):
        width = architecture[f"width{index}"]
        activation = ACTIVATIONS[architecture["activation"]]()
        layers += [nn.Linear(features, width), activation, nn.Dropout(architecture["dropout"])]
        features = width
    return nn.Sequential(*layers, nn.Linear(features, 10))


def load_data() -> tuple[DataLoader, DataLoader]:  # type: ignore[type-arg]
    """Return training and validation rows, four fifths and one fifth of the 1797."""
    inputs, targets = load_digits(return_X_y=True)
    rows = torch.as_tensor(inputs / 16.0, dtype=torch.float32)
    parts = train_test_split(rows, targets, test_size=0.2, random_state=0, stratify=targets)
    x_train, x_val, y_train, y_val = (torch.as_tensor(part) for part in parts)
    return (
        DataLoader(TensorDataset(x_train, y_train), BATCH_SIZE, shuffle=True),
        DataLoader(TensorDataset(x_val, y_val), VALIDATION_BATCH_SIZE),
    )
