"""One trial inside a job: everything of it that moves, and nothing shared with the others."""

import time
from typing import Any

import torch
from pytorch_lightning import LightningModule
from torch.utils._pytree import tree_leaves, tree_map

from nasflow.errors import TrialError
from nasflow.evaluator.candidate import Candidate
from nasflow.training.fitting import EarlyStop, Fitting
from nasflow.training.logbook import Logbook, batch_size_of
from nasflow.training.rng import RngStream


class TrainerView:
    """What a member's module sees as `self.trainer`: the job's Trainer, but with the member's own progress.

    The job's counters depend on who else is in it; a member's must not.
    """

    def __init__(self, trainer: Any, member: "Member"):
        self._trainer = trainer
        self._member = member

    @property
    def current_epoch(self) -> int:
        """Epochs the member has finished."""
        return self._member.finished_epochs

    @property
    def global_step(self) -> int:
        """Optimizer steps the member has made."""
        return self._member.steps

    @property
    def max_epochs(self) -> int:
        """Epochs the member is to train."""
        return self._member.epochs

    @property
    def estimated_stepping_batches(self) -> int:
        """Optimizer steps in the member's whole training."""
        return int(self._trainer.num_training_batches) * self._member.epochs

    def __getattr__(self, name: str) -> Any:
        return getattr(self._trainer, name)


class Member:
    """A trial being trained.

    Hooks of its LightningModule that are called: `setup("fit")`, `configure_optimizers`, `on_fit_start`,
    `on_train_epoch_start`, `training_step`, `on_validation_epoch_start`, `validation_step`,
    `on_validation_epoch_end`, `on_train_epoch_end`, and `log` / `log_dict` within them. Each runs within the
    member's own random stream.

    Args:
        number: of the trial.
        module: built within `rng`.
        candidate: what the module trains, for its config and the number of parameters.
    """

    def __init__(self, number: int, module: LightningModule, candidate: Candidate, rng: RngStream):
        config = candidate.config
        self.number = number
        self.module = module
        self.epochs = int(config.epochs)  # type: ignore[arg-type]
        self.parameters = candidate.parameters
        self.finished_epochs = 0
        self.finished = False
        self.stopped_early = False
        self.history: list[dict[str, float]] = []
        self.seconds: list[float] = []
        self._config = config
        self._rng = rng
        self._book = Logbook()
        self._early_stop = EarlyStop(config.early_stopping) if config.early_stopping else None
        self._started: Fitting | None = None
        self._probed: set[str] = set()
        self._writes_batches = False
        self._busy = 0.0
        module.log = self._book.log  # type: ignore[method-assign]
        module.log_dict = self._book.log_dict  # type: ignore[method-assign,assignment]

    @property
    def steps(self) -> int:
        """Optimizer steps made."""
        return self._started.steps if self._started else 0

    @property
    def _fitting(self) -> Fitting:
        if self._started is None:
            raise RuntimeError(f"trial {self.number} was not started")
        return self._started

    def start(self, trainer: Any) -> None:
        """Make the optimizer, once the module lies on its device in its precision."""
        self.module._trainer = TrainerView(trainer, self)  # type: ignore[assignment]
        with self._rng:
            self.module.setup("fit")
            clip = self._config.gradient_clip_val
            self._started = Fitting(
                self.module.configure_optimizers(),
                None if clip is None else float(clip),  # type: ignore[arg-type]
                self._config.gradient_clip_algorithm,
            )
            self.module.on_fit_start()

    def start_epoch(self) -> None:
        """Before the first batch of an epoch."""
        self._busy = 0.0
        with self._rng:
            self.module.on_train_epoch_start()

    def train_batch(self, batch: Any, index: int) -> None:
        """One optimizer step on the shared batch.

        Raises:
            TrialError: the loss is not finite.
        """
        began = time.perf_counter()
        self._book.batch_size = batch_size_of(batch)
        with self._rng:
            output = self._shielded(self.module.training_step, batch, index)
            loss = output["loss"] if isinstance(output, dict) else output
            if loss is not None:  # None skips the batch, as in Lightning
                if not torch.isfinite(loss):
                    raise TrialError(
                        f"training loss is {loss.item()} in epoch {self.finished_epochs + 1}, step {index}"
                    )
                self._fitting.step(loss, self.module.parameters())
        self._busy += time.perf_counter() - began

    def start_validation(self) -> None:
        """Before the first validation batch."""
        with self._rng:
            self.module.on_validation_epoch_start()

    def validate_batch(self, batch: Any, index: int) -> None:
        """Score one validation batch."""
        began = time.perf_counter()
        self._book.batch_size = batch_size_of(batch)
        with self._rng:
            self._shielded(self.module.validation_step, batch, index)
        self._busy += time.perf_counter() - began

    def end_validation(self) -> None:
        """After the last validation batch."""
        with self._rng:
            self.module.on_validation_epoch_end()

    def end_epoch(self) -> None:
        """Close the epoch: metrics into the history, schedules stepped, early stop decided.

        Raises:
            TrialError: a loss or a weight is not finite.
        """
        with self._rng:
            self.module.on_train_epoch_end()
            metrics = self.metrics()
            self._refuse_not_finite(metrics)
            self._fitting.end_epoch(self.finished_epochs + 1, metrics)
        self.finished_epochs += 1
        self.history.append(metrics)
        self.seconds.append(self._busy)
        self.stopped_early = self._early_stop is not None and self._early_stop.update(metrics)
        self.finished = self.stopped_early or self.finished_epochs >= self.epochs
        self.stopped_early = self.stopped_early and self.finished_epochs < self.epochs

    def metrics(self) -> dict[str, float]:
        """What was logged since the last call."""
        return self._book.close_epoch()

    def state_dict(self) -> dict[str, Any]:
        """All that continuing exactly needs; `packing.pack` takes it."""
        return {
            "epoch": self.finished_epochs,
            "parameters": self.parameters,
            "finished": self.finished,
            "stopped_early": self.stopped_early,
            "history": self.history,
            "seconds": self.seconds,
            "module": dict(self.module.state_dict()),
            "fitting": self._fitting.state_dict(),
            "early_stop": self._early_stop.state_dict() if self._early_stop else None,
            "rng": self._rng.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state, after `start`."""
        self.finished_epochs = state["epoch"]
        self.finished = state["finished"]
        self.stopped_early = state["stopped_early"]
        self.history = state["history"]
        self.seconds = state["seconds"]
        self.module.load_state_dict(state["module"])
        self._fitting.load_state_dict(state["fitting"])
        if self._early_stop:
            self._early_stop.load_state_dict(state["early_stop"])
        self._rng.load_state_dict(state["rng"])

    def _refuse_not_finite(self, metrics: dict[str, float]) -> None:
        for name, value in metrics.items():
            if "loss" in name and not float("-inf") < value < float("inf"):
                raise TrialError(f"{name} is {value} after epoch {self.finished_epochs + 1}")
        weights = [p for p in self.module.parameters() if p.is_floating_point()]
        if not torch.isfinite(torch.nn.utils.get_total_norm(weights)):
            raise TrialError(f"weights are not finite after epoch {self.finished_epochs + 1}")

    def _shielded(self, step: Any, batch: Any, index: int) -> Any:
        """Call a step so that writing into the batch in place can't reach the other members.

        The first batch of each kind is given as a copy to see whether the member writes; one that does gets copies
        ever after.
        """
        if not self._writes_batches and step.__name__ in self._probed:
            return step(batch, index)
        own = tree_map(lambda leaf: leaf.clone() if isinstance(leaf, torch.Tensor) else leaf, batch)
        versions = _versions(own)
        output = step(own, index)
        self._writes_batches = self._writes_batches or versions != _versions(own)
        self._probed.add(step.__name__)
        return output


def _versions(batch: Any) -> list[int]:
    """How often each tensor of a batch was written in place."""
    return [leaf._version for leaf in tree_leaves(batch) if isinstance(leaf, torch.Tensor)]
