"""Load the data that trains and scores candidates, in any of the forms that users may give."""

import json
import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nasflow.config.search import DataConfig, Target
from nasflow.errors import ConfigError
from nasflow.evaluator.data_share import share_of
from nasflow.load_target import check_params, load_target

if TYPE_CHECKING:
    from pytorch_lightning import LightningDataModule


@dataclass(frozen=True)
class Data:
    """The data of every member of a job. `module` is the user's LightningDataModule if the loaders came from one."""

    train: Iterable[Any]
    validation: Iterable[Any] | None
    module: "LightningDataModule | None" = None


def fingerprint(config: DataConfig | None) -> str:
    """Return an identifier of a closed config's data; trials with equal ones can share one pass over the data."""
    if config is None:
        return ""
    share = "" if config.fraction == 1 else f" x {config.fraction}"
    return f"{config.target}({json.dumps(config.params, sort_keys=True, default=str)}){share}"


def load_data(config: DataConfig, base_dir: Path, seed: int = 0) -> Data:
    """Build the data that `config` names: a LightningDataModule, a pair (train, validation) of loaders, or one loader.

    Args:
        config: closed.
        base_dir: the folder of the user's code.
        seed: draws the samples, if it names a fraction of those to train on.

    Raises:
        ConfigError: the target returns none of these, or does not take the params, or there is no such fraction.
    """
    data = _load(config, base_dir)
    share = share_of(data.train, float(config.fraction), seed, config.target)  # type: ignore[arg-type]
    return replace(data, train=share)


def _load(config: DataConfig, base_dir: Path) -> Data:
    made = _make(config, base_dir, "evaluator.data")
    if _is_data_module(made):
        return _from_module(config.target, made)
    if isinstance(made, tuple) and len(made) == 2 and all(_iterable(part) for part in made):
        return Data(*made)
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
        raise ConfigError(f"evaluator.data: {target} gives several loaders at once; it should give one for each stage")
    return Data(train, validation, module)


def _is_data_module(made: Any) -> bool:
    """Whether `made` is a LightningDataModule. Does not import Lightning, which is slow, if nothing else did."""
    lightning = sys.modules.get("pytorch_lightning")
    return lightning is not None and isinstance(made, lightning.LightningDataModule)


def _iterable(thing: Any) -> bool:
    return hasattr(thing, "__iter__")
