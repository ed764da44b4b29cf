"""scikit-learn's bundled data sets, as an evaluator's data.

Each takes `batch_size`, the samples of a training batch, and `val_fraction`, the share of samples to validate on.
`test_fraction` is the share that is put aside before that; `part: test` gives a loader of these samples for
`evaluator.test_data`. They raise ConfigError for values that can't be.
"""

from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

import torch
from sklearn import datasets
from sklearn.model_selection import train_test_split

from nasflow.errors import ConfigError
from nasflow.evaluator.loading.loaders import TensorLoader

_Loaders = tuple[TensorLoader, TensorLoader] | TensorLoader


@dataclass(frozen=True)
class _Split:
    """A fixed split, so that scores can be compared between searches; the attributes are the params of the config."""

    batch_size: int
    val_fraction: float
    test_fraction: float
    part: str

    def loaders(self, inputs: Any, targets: Any, stratify: bool = True) -> _Loaders:
        """Return loaders to train and to validate on, or one to test on."""
        self._check()
        if self.test_fraction:
            inputs, x_test, targets, y_test = _parts(inputs, targets, self.test_fraction, stratify, "test_fraction")
            if self.part == "test":
                return TensorLoader((x_test, y_test), 256)
        x_train, x_val, y_train, y_val = _parts(inputs, targets, self.val_fraction, stratify, "val_fraction")
        return TensorLoader((x_train, y_train), self.batch_size, shuffle=True), TensorLoader((x_val, y_val), 256)

    def _check(self) -> None:
        size, val, test = self.batch_size, self.val_fraction, self.test_fraction
        if not isinstance(size, Integral) or isinstance(size, bool) or size < 1:
            raise _refused("batch_size", f"it should be a whole number from 1 on, not {size!r:.80}")
        if not isinstance(val, Real) or not 0 < val < 1:
            raise _refused("val_fraction", f"it should be a number between 0 and 1, not {val!r:.80}")
        if not isinstance(test, Real) or isinstance(test, bool) or not 0 <= test < 1:
            raise _refused("test_fraction", f"it should be 0, or a number between 0 and 1, not {test!r:.80}")
        if self.part not in ("fit", "test"):
            raise _refused("part", f"it should be fit or test, not {self.part!r:.80}")
        if self.part == "test" and not test:
            raise _refused("test_fraction", "with part: test, it should be what evaluator.data has")


def _parts(inputs: Any, targets: Any, fraction: float, stratify: bool, param: str) -> list[torch.Tensor]:
    """Return the inputs and targets of both parts; the second part has this share of the samples."""
    try:
        parts = train_test_split(
            inputs, targets, test_size=float(fraction), random_state=0, stratify=targets if stratify else None
        )
    except ValueError as error:
        raise _refused(param, str(error)) from None
    return [torch.as_tensor(part) for part in parts]


def _refused(param: str, reason: str) -> ConfigError:
    return ConfigError(f"evaluator.data.params.{param}: {reason}")


def _standard(inputs: Any) -> torch.Tensor:
    """Return the columns with mean 0 and standard deviation 1, in float32."""
    rows = torch.as_tensor(inputs, dtype=torch.float32)
    return (rows - rows.mean(0)) / rows.std(0).clamp_min(1e-8)


def Digits(  # noqa: N802
    batch_size: int = 64, val_fraction: float = 0.2, test_fraction: float = 0.0, part: str = "fit"
) -> _Loaders:
    """scikit-learn's 1797 digits as images `[B, 1, 8, 8]` in 0..1, classes `[B]` of 10."""
    inputs, targets = datasets.load_digits(return_X_y=True)
    images = torch.as_tensor(inputs / 16.0, dtype=torch.float32).reshape(-1, 1, 8, 8)
    return _Split(batch_size, val_fraction, test_fraction, part).loaders(images, targets)


def DigitsRows(  # noqa: N802
    batch_size: int = 64, val_fraction: float = 0.2, test_fraction: float = 0.0, part: str = "fit"
) -> _Loaders:
    """The same digits as rows `[B, 64]`."""
    inputs, targets = datasets.load_digits(return_X_y=True)
    rows = torch.as_tensor(inputs / 16.0, dtype=torch.float32)
    return _Split(batch_size, val_fraction, test_fraction, part).loaders(rows, targets)


def Wine(  # noqa: N802
    batch_size: int = 32, val_fraction: float = 0.25, test_fraction: float = 0.0, part: str = "fit"
) -> _Loaders:
    """scikit-learn's 178 wines, standardized rows `[B, 13]`, classes `[B]` of 3."""
    inputs, targets = datasets.load_wine(return_X_y=True)
    return _Split(batch_size, val_fraction, test_fraction, part).loaders(_standard(inputs), targets)


def BreastCancer(  # noqa: N802
    batch_size: int = 32, val_fraction: float = 0.25, test_fraction: float = 0.0, part: str = "fit"
) -> _Loaders:
    """scikit-learn's 569 tumours, standardized rows `[B, 30]`, classes `[B]` of 2."""
    inputs, targets = datasets.load_breast_cancer(return_X_y=True)
    return _Split(batch_size, val_fraction, test_fraction, part).loaders(_standard(inputs), targets)


def Diabetes(  # noqa: N802
    batch_size: int = 32, val_fraction: float = 0.25, test_fraction: float = 0.0, part: str = "fit"
) -> _Loaders:
    """scikit-learn's 442 patients, standardized rows `[B, 10]`, standardized disease progression `[B]`."""
    inputs, targets = datasets.load_diabetes(return_X_y=True)
    return _Split(batch_size, val_fraction, test_fraction, part).loaders(
        _standard(inputs), _standard(targets), stratify=False
    )
