"""Load the data that trains and scores candidates, in any of the forms that users may give."""

import inspect
import json
import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader

from nasflow.config.search import DataConfig, Target
from nasflow.errors import ConfigError
from nasflow.evaluator.loading.data_share import share_of
from nasflow.evaluator.loading.folds import KEY as FOLDS
from nasflow.evaluator.loading.folds import split
from nasflow.evaluator.loading.loaders import TensorLoader
from nasflow.load_target import check_params, load_target

if TYPE_CHECKING:
    from pytorch_lightning import LightningDataModule


@dataclass(frozen=True)
class Data:
    """The data of every member of a job.

    Attributes:
        train: what is trained on.
        validation: what is validated on, None for nothing.
        module: the user's LightningDataModule if the loaders came from one.
        folds: the data of each fold of a cross-validation; empty without one.
    """

    train: Iterable[Any]
    validation: Iterable[Any] | None
    module: "LightningDataModule | None" = None
    folds: tuple["Data", ...] = ()

    def of(self, number: int) -> "Data":
        """Return the data of a member by its number: of its fold, if there are folds."""
        return self.folds[number % len(self.folds)] if self.folds else self


def fingerprint(config: DataConfig | None) -> str:
    """Return an identifier of a closed config's data; trials with equal ones can share one pass over the data."""
    if config is None:
        return ""
    share = "" if config.fraction == 1 else f" x {config.fraction}"
    kept = ", workers kept" if config.keep_workers else ""
    return f"{config.target}({json.dumps(config.params, sort_keys=True, default=str)}){share}{kept}"


def load_data(config: DataConfig, base_dir: Path, seed: int = 0, folds: int | None = None) -> Data:
    """Build the data that `config` names: a LightningDataModule, a pair (train, validation) of loaders, or one loader.

    Args:
        config: closed.
        base_dir: the folder of the user's code.
        seed: draws the folds, and the samples, if it names a fraction of those to train on.
        folds: split the data for cross-validation. The loaders returned are those of the first fold.

    Raises:
        ConfigError: the target returns none of these, or does not take the params, or there is no such fraction, or
            samples that can't be split into folds.
    """

    def shared(data: Data) -> Data:
        share = share_of(data.train, float(config.fraction), seed, config.target)  # type: ignore[arg-type]
        return replace(data, train=share)

    if folds is None:
        return shared(_load(config, base_dir))
    each = tuple(map(shared, _load_folds(config, base_dir, seed, folds)))
    return replace(each[0], folds=each)


def _load_folds(config: DataConfig, base_dir: Path, seed: int, folds: int) -> list[Data]:
    """Return the data of each fold, split by the target itself if it takes `fold` and `folds`."""
    factory, names = load_target(config.target, base_dir), {"fold", "folds"}
    if not (names <= _parameters(factory) and names.isdisjoint(config.params)):
        data = _load(config, base_dir)
        parts = split(data.train, folds, seed, config.target)
        return [Data(train, validation, data.module) for train, validation in parts]
    each = []
    for fold in range(folds):
        params = {**config.params, "fold": fold, "folds": folds}
        data = _load(config.model_copy(update={"params": params}), base_dir)
        if data.validation is None:
            raise ConfigError(f"{FOLDS}: {config.target} gives no validation data for fold {fold}; it should give both")
        each.append(data)
    return each


def _parameters(factory: Any) -> set[str]:
    """Return the names of a callable's parameters; none if they are not known."""
    try:
        return set(inspect.signature(factory).parameters)
    except (TypeError, ValueError):
        return set()


def _load(config: DataConfig, base_dir: Path) -> Data:
    made = _make(config, base_dir, "evaluator.data")
    if _is_data_module(made):
        return _from_module(config.target, made)
    if isinstance(made, tuple) and len(made) == 2 and all(_iterable(part) for part in made):
        if any(_are_loaders(part) for part in made):
            raise _several(config.target)
        return Data(*made)
    if isinstance(made, list) and _are_loaders(made):
        raise ConfigError(
            f"evaluator.data: {config.target} gave a list of loaders; let it give a tuple: return train, validation"
        )
    if _iterable(made) and not isinstance(made, tuple):
        return Data(made, None)
    raise ConfigError(
        f"evaluator.data: {config.target} gave a {type(made).__name__}; "
        "it should give a LightningDataModule, a loader, or a pair (train, validation) of loaders"
    )


def load_test_data(config: Target, base_dir: Path) -> Data:
    """Build the test data that `config` names, as validation data: a LightningDataModule, or one loader.

    Raises:
        ConfigError: the target returns neither, or does not take the params.
    """
    made = _make(config, base_dir, "evaluator.test_data")
    if _is_data_module(made):
        made.prepare_data()
        made.setup("test")
        loader = made.test_dataloader()
        if isinstance(loader, list | tuple | dict):
            raise ConfigError(f"evaluator.test_data: {config.target} gives several loaders at once; it should give one")
        return Data((), loader, made)
    if _iterable(made) and not isinstance(made, tuple):
        return Data((), made)
    raise ConfigError(
        f"evaluator.test_data: {config.target} gave a {type(made).__name__}; it should give a LightningDataModule or a "
        "loader"
    )


def _make(config: Target, base_dir: Path, key: str) -> Any:
    factory = load_target(config.target, base_dir)
    if not callable(factory):
        raise ConfigError(f"{key}: {config.target} is not callable; it should give the data when called")
    check_params(key, config.target, factory, **config.params)
    return factory(**config.params)


def _from_module(target: str, module: "LightningDataModule") -> Data:
    """Return the loaders of a LightningDataModule; without its own `val_dataloader` it has no validation data."""
    from pytorch_lightning import LightningDataModule  # noqa: PLC0415

    module.prepare_data()
    module.setup("fit")
    has_validation = type(module).val_dataloader is not LightningDataModule.val_dataloader
    train, validation = module.train_dataloader(), module.val_dataloader() if has_validation else None
    if isinstance(train, list | tuple | dict) or isinstance(validation, list | tuple | dict):
        raise _several(target)
    return Data(train, validation, module)


def _several(target: str) -> ConfigError:
    return ConfigError(f"evaluator.data: {target} gives several loaders at once; it should give one for each stage")


def _are_loaders(part: Any) -> bool:
    """Whether `part` is a list of loaders, not of batches."""
    return isinstance(part, list) and any(isinstance(each, DataLoader | TensorLoader) for each in part)


def _is_data_module(made: Any) -> bool:
    """Whether `made` is a LightningDataModule. Does not import Lightning, which is slow, if nothing else did."""
    lightning = sys.modules.get("pytorch_lightning")
    return lightning is not None and isinstance(made, lightning.LightningDataModule)


def _iterable(thing: Any) -> bool:
    return hasattr(thing, "__iter__")
