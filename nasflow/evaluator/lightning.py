"""`kind: lightning`: any LightningModule class of the user that takes `model` and uses `self.model(x)`."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pytorch_lightning import LightningModule
from pytorch_lightning.utilities.signature_utils import is_param_in_hook_signature
from torch import nn

from nasflow.config.search import LightningConfig
from nasflow.errors import ConfigError
from nasflow.evaluator.base import Evaluator
from nasflow.load_target import check_params, load_target


class Lightning(Evaluator):
    """Builds the user's class as `Class(model=model, **params)`."""

    config: LightningConfig

    def __init__(self, config: LightningConfig, base_dir: Path):
        super().__init__(config)
        self._class = load_target(config.module.target, base_dir)
        if not (isinstance(self._class, type) and issubclass(self._class, LightningModule)):
            raise ConfigError(f"evaluator.module: {config.module.target} should be a LightningModule class")
        check_params("evaluator.module", config.module.target, self._class, model=None, **config.module.params)

    def module(self, model: nn.Module) -> LightningModule:
        """Return the user's module."""
        module: LightningModule = self._class(model=model, **self.config.module.params)
        return module


def takes_index(step: Callable[..., Any]) -> bool:
    """Whether a module's `training_step` or `validation_step` takes the batch's index."""
    return _takes_index(getattr(step, "__func__", step))


@functools.cache
def _takes_index(step: Callable[..., Any]) -> bool:
    return is_param_in_hook_signature(step, "batch_idx", min_args=2)
