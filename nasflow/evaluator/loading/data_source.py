"""Load the data that trains and scores candidates, in any of the forms that users may give."""

import copy
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
from nasflow.evaluator.loading.data_trainer import DataTrainer, bare_trainer
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
        data = _load(config.replaced(params=params), base_dir)
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
        train, validation = (_only(part, config.target) for part in made)
        return Data(train, validation)
    if isinstance(made, list) and len(made) > 1 and _are_loaders(made):
        raise ConfigError(
            f"evaluator.data: {config.target} gave a list of loaders; let it give a tuple: return train, validation"
        )
    if _iterable(made) and not isinstance(made, tuple):
        return Data(_only(made, config.target), None)
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
        _set_up(made, "test")
        return Data((), _only(made.test_dataloader(), config.target, "test_data", by_module=True), made)
    if _iterable(made) and not isinstance(made, tuple):
        return Data((), _only(made, config.target, "test_data"))
    raise ConfigError(
        f"evaluator.test_data: {config.target} gave a {type(made).__name__}; it should give a LightningDataModule or a "
        "loader"
    )


def _make(config: Target, base_dir: Path, key: str) -> Any:
    factory = load_target(config.target, base_dir)
    if not callable(factory):
        raise ConfigError(f"{key}: {config.target} is not callable; it should give the data when called")
    check_params(key, config.target, factory, **config.params)
    return factory(**copy.deepcopy(config.params))  # it may change its own


def _from_module(target: str, module: "LightningDataModule") -> Data:
    """Return the loaders of a LightningDataModule; without its own `val_dataloader` it has no validation data."""
    from pytorch_lightning.utilities.model_helpers import is_overridden  # noqa: PLC0415 - slow

    _set_up(module, "fit")
    train = _only(module.train_dataloader(), target, by_module=True)
    if not is_overridden("val_dataloader", module):
        return Data(train, None, module)
    return Data(train, _only(module.val_dataloader(), target, by_module=True), module)


def _set_up(module: "LightningDataModule", stage: str) -> None:
    """Make a module ready to give the loaders of a stage."""
    module.trainer = DataTrainer(bare_trainer())  # type: ignore[assignment]
    module.prepare_data()
    module.setup(stage)


def _only(part: Any, target: str, key: str = "data", *, by_module: bool = False) -> Any:
    """Return the loader of a stage, also from a list of just that one. Raises ConfigError for several.

    Args:
        by_module: a LightningDataModule gave it, of which a list is never one of batches.
    """
    found = _are_loaders(part)
    if found and isinstance(part, list | tuple) and len(part) == 1:
        return part[0]
    if found or (by_module and isinstance(part, list | tuple | dict)):
        stage = " for each stage, such as an iterable that puts their batches together" if key == "data" else ""
        raise ConfigError(f"evaluator.{key}: {target} gives several loaders at once; it should give one{stage}")
    return part


def _are_loaders(part: Any) -> bool:
    """Whether `part` is a list, tuple or dict of loaders, not of batches, or loaders that Lightning combines."""
    if isinstance(part, list | tuple | dict):
        each = part.values() if isinstance(part, dict) else part
        return any(isinstance(one, DataLoader | TensorLoader) for one in each)
    lightning = sys.modules.get("pytorch_lightning.utilities.combined_loader")
    return lightning is not None and isinstance(part, lightning.CombinedLoader)


def _is_data_module(made: Any) -> bool:
    """Whether `made` is a LightningDataModule. Does not import Lightning, which is slow, if nothing else did."""
    lightning = sys.modules.get("pytorch_lightning")
    return lightning is not None and isinstance(made, lightning.LightningDataModule)


def _iterable(thing: Any) -> bool:
    return hasattr(thing, "__iter__")
