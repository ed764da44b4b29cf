"""The data of an evaluator: scikit-learn's bundled sets, and what users bring."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from sklearn import datasets
from sklearn.model_selection import train_test_split

from nasflow.config import DataConfig
from nasflow.errors import ConfigError
from nasflow.evaluator.loaders import TensorLoader
from nasflow.target import check_params, load_target

if TYPE_CHECKING:
    from pytorch_lightning import LightningDataModule


@dataclass(frozen=True)
class Data:
    """What every member of a job is fed. `module` is the user's LightningDataModule if the loaders came from one."""

    train: Iterable[Any]
    validation: Iterable[Any] | None
    module: "LightningDataModule | None" = None


def fingerprint(config: DataConfig) -> str:
    """Names the data of a config whose searched values are closed: equal names share one pass over the data."""
    return f"{config.target}({json.dumps(config.params, sort_keys=True, default=str)})"


def load_data(config: DataConfig, base_dir: Path) -> Data:
    """Build the data that `config` names: a LightningDataModule, a pair (train, validation) of loaders, or one loader.

    Raises:
        ConfigError: the target gives none of these, or does not take the params.
    """
    from pytorch_lightning import LightningDataModule  # noqa: PLC0415 - slow, and loaders alone do without

    factory = load_target(config.target, base_dir)
    if not callable(factory):
        raise ConfigError(f"evaluator.data: {config.target} is not callable; it should give the data when called")
    check_params("evaluator.data", config.target, factory, **config.params)
    made = factory(**config.params)
    if isinstance(made, LightningDataModule):
        return _from_module(config.target, made)
    if isinstance(made, tuple) and len(made) == 2 and all(_iterable(part) for part in made):
        return Data(*made)
    if _iterable(made) and not isinstance(made, tuple):
        return Data(made, None)
    raise ConfigError(
        f"evaluator.data: {config.target} gave a {type(made).__name__}; "
        "it should give a LightningDataModule, a loader, or a pair (train, validation) of loaders"
    )


def _from_module(target: str, module: "LightningDataModule") -> Data:
    """The loaders of a LightningDataModule; one that does not override `val_dataloader` has no validation data."""
    from pytorch_lightning import LightningDataModule  # noqa: PLC0415

    module.prepare_data()
    module.setup("fit")
    has_validation = type(module).val_dataloader is not LightningDataModule.val_dataloader
    train, validation = module.train_dataloader(), module.val_dataloader() if has_validation else None
    if isinstance(train, list | tuple | dict) or isinstance(validation, list | tuple | dict):
        raise ConfigError(f"evaluator.data: {target} gives several loaders at once; it should give one for each stage")
    return Data(train, validation, module)


def _iterable(thing: Any) -> bool:
    return hasattr(thing, "__iter__")


def _split(
    inputs: Any, targets: Any, batch_size: int, val_fraction: float, stratify: bool
) -> tuple[TensorLoader, TensorLoader]:
    """A fixed split, the same for every search, so that scores can be compared between searches."""
    parts = train_test_split(
        inputs, targets, test_size=val_fraction, random_state=0, stratify=targets if stratify else None
    )
    x_train, x_val, y_train, y_val = (torch.as_tensor(part) for part in parts)
    return TensorLoader((x_train, y_train), batch_size, shuffle=True), TensorLoader((x_val, y_val), 256)


def _standard(inputs: Any) -> torch.Tensor:
    """Columns of mean 0 and deviation 1, float32."""
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
    """scikit-learn's 442 patients, standardized rows `[B, 10]`, disease progression `[B]` in units of its deviation."""
    inputs, targets = datasets.load_diabetes(return_X_y=True)
    return _split(_standard(inputs), _standard(targets), batch_size, val_fraction, stratify=False)
