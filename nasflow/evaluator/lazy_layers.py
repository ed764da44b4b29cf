"""Initialize the lazy layers of a module; their sizes follow from the first batch of its data."""

from typing import TYPE_CHECKING, Any

import torch

from nasflow.errors import ConfigError
from nasflow.evaluator.loading.data_source import Data
from nasflow.space.lazy_layers import lazy_layers

if TYPE_CHECKING:
    from pytorch_lightning import LightningModule


def first_batch(data: Data, device: torch.device | None = None) -> Any:
    """Return the first training batch on a device (default: CPU), after a LightningDataModule's transfer hooks.

    Raises:
        ConfigError: there is no batch.
    """
    from lightning_fabric.utilities import move_data_to_device  # noqa: PLC0415 - slow

    device = device or torch.device("cpu")
    for batch in data.train:
        if data.module is None:
            return move_data_to_device(batch, device)
        prepared = data.module.on_before_batch_transfer(batch, 0)
        return data.module.on_after_batch_transfer(data.module.transfer_batch_to_device(prepared, device, 0), 0)
    raise ConfigError("evaluator.data: there is no batch to train on")


def complete(module: "LightningModule", batch: Any) -> None:
    """Initialize a module's lazy layers by a training step, which may change anything else in it too.

    For layers that the step skips, such as one that is dropped at random, the step is repeated in evaluation mode.

    Raises:
        ConfigError: `batch` does not reach a lazy layer; the message names it.
        Exception: whatever the module's training step raises.
    """
    from nasflow.evaluator.lightning import takes_index  # noqa: PLC0415 - slow

    def nothing(*_: Any, **__: Any) -> None:
        """Log nothing."""

    module.log = module.log_dict = nothing  # type: ignore[method-assign]
    for mode in (True, False):
        module.train(mode)
        module.training_step(*(batch, 0) if takes_index(module.training_step) else (batch,))
        if not lazy_layers(module):
            return
    raise ConfigError(
        f"space.target: lazy layer '{next(iter(lazy_layers(module)))}' has no size, because a batch of training data "
        "does not reach it; give it its size, or use it in forward"
    )
