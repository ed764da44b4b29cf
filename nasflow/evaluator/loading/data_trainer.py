"""The Trainer that a LightningDataModule sees."""

import logging
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from nasflow.errors import ConfigError
from nasflow.system.log_level import log_level

if TYPE_CHECKING:
    from pytorch_lightning import Trainer


class DataTrainer:
    """The `self.trainer` of a data module: a Trainer, but for what follows from which trials are in the job.

    A Trainer can't be sent to other processes: in those of a loader that are not forked, it is None.

    Args:
        trainer: the job's, or a bare one.
        epoch: returns how often the data was passed over before, the same whenever a job is resumed.
    """

    def __init__(self, trainer: Any, epoch: Callable[[], int] = lambda: 0):
        self._trainer = trainer
        self._epoch = epoch

    @property
    def current_epoch(self) -> int:
        """The number of this pass over the data, from 0."""
        return self._epoch()

    @property
    def max_epochs(self) -> int:
        """Refuse to give one number for all trials. Raises ConfigError."""
        raise ConfigError(
            "evaluator.data: its module asks for trainer.max_epochs, and the trials of a job may have different ones; "
            "give it the number as a param"
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(self._trainer, name)

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        return type(None), ()


def bare_trainer() -> "Trainer":
    """Return a Trainer for `self.trainer` in hooks and steps when nothing is trained."""
    from lightning_fabric.plugins.environments.lightning import LightningEnvironment  # noqa: PLC0415 - slow
    from pytorch_lightning import Trainer  # noqa: PLC0415 - slow

    with log_level("pytorch_lightning", logging.WARNING), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*available but not used")  # the job may use its GPU
        return Trainer(
            accelerator="cpu",
            devices=1,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            plugins=[LightningEnvironment()],
        )
