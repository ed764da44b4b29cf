"""scikit-learn's bundled data sets, as an evaluator's data.

Each takes `batch_size`, the samples of a training batch, and `val_fraction`, the share of samples to validate on. They
raise ConfigError for values that can't be.
"""

from numbers import Integral, Real
from typing import Any

import torch
from sklearn import datasets
from sklearn.model_selection import train_test_split

from nasflow.errors import ConfigError
from nasflow.evaluator.loaders import TensorLoader


def _split(
    inputs: Any, targets: Any, batch_size: int, val_fraction: float, stratify: bool
) -> tuple[TensorLoader, TensorLoader]:
    """Return loaders for a fixed split, so that scores can be compared between searches."""
    if not isinstance(batch_size, Integral) or isinstance(batch_size, bool) or batch_size < 1:
        raise _refused("batch_size", f"it should be a whole number from 1 on, not {batch_size!r:.80}")
    if not isinstance(val_fraction, Real) or not 0 < val_fraction < 1:
        raise _refused("val_fraction", f"it should be a number between 0 and 1, not {val_fraction!r:.80}")
    try:
        parts = train_test_split(
            inputs, targets, test_size=float(val_fraction), random_state=0, stratify=targets if stratify else None
        )
    except ValueError as error:
        raise _refused("val_fraction", str(error)) from None
    x_train, x_val, y_train, y_val = (torch.as_tensor(part) for part in parts)
    return TensorLoader((x_train, y_train), batch_size, shuffle=True), TensorLoader((x_val, y_val), 256)


def _refused(param: str, reason: str) -> ConfigError:
    return ConfigError(f"evaluator.data.params.{param}: {reason}")


def _standard(inputs: Any) -> torch.Tensor:
    """Return the columns with mean 0 and standard deviation 1, in float32."""
    rows = torch.as_tensor(inputs, dtype=torch.float32)
    return (rows - rows.mean(0)) / rows.std(0).clamp_min(1e-8)


def Digits(batch_size: int = 64, val_fraction: float = 0.2) -> tuple[TensorLoader, TensorLoader]:  # noqa: N802
    """scikit-learn's 1797 digits as images `[B, 1, 8, 8]` in 0..1, classes `[B]` of 10."""
    inputs, targets = datasets.load_digits(return_X_y=True)
    images = torch.as_tensor(inputs / 16.0, dtype=torch.float32).reshape(-1, 1, 8, 8)
    return _split(images, targets, batch_size, val_fraction, stratify=True)


def DigitsRows(batch_size: int = 64, val_fraction: float = 0.2) -> tuple[TensorLoader, TensorLoader]:  # noqa: N802
    """The same digits as rows `[B, 64]`."""
    inputs, targets = datasets.load_digits(return_X_y=True)
    return _split(torch.as_tensor(inputs / 16.0, dtype=torch.float32), targets, batch_size, val_fraction, stratify=True)


def Wine(batch_size: int = 32, val_fraction: float = 0.25) -> tuple[TensorLoader, TensorLoader]:  # noqa: N802
    """scikit-learn's 178 wines, standardized rows `[B, 13]`, classes `[B]` of 3."""
    inputs, targets = datasets.load_wine(return_X_y=True)
    return _split(_standard(inputs), targets, batch_size, val_fraction, stratify=True)


def BreastCancer(batch_size: int = 32, val_fraction: float = 0.25) -> tuple[TensorLoader, TensorLoader]:  # noqa: N802
    """scikit-learn's 569 tumours, standardized rows `[B, 30]`, classes `[B]` of 2."""
    inputs, targets = datasets.load_breast_cancer(return_X_y=True)
    return _split(_standard(inputs), targets, batch_size, val_fraction, stratify=True)


def Diabetes(batch_size: int = 32, val_fraction: float = 0.25) -> tuple[TensorLoader, TensorLoader]:  # noqa: N802
    """scikit-learn's 442 patients, standardized rows `[B, 10]`, standardized disease progression `[B]`."""
    inputs, targets = datasets.load_diabetes(return_X_y=True)
    return _split(_standard(inputs), _standard(targets), batch_size, val_fraction, stratify=False)
