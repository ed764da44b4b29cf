"""One worker of a plain Optuna study: takes trials from its storage and trains each with a plain Lightning Trainer."""

import argparse
import json
import logging
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import optuna
import pytorch_lightning as pl
import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.plain_mlp import ACTIVATIONS, build_model, load_data

LEARNING_RATES = (1e-3, 1e-2)


class Classifier(pl.LightningModule):
    """Cross-entropy, AdamW, accuracy on validation data."""

    def __init__(self, model: nn.Module, lr: float):
        super().__init__()
        self.model = model
        self.lr = lr

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        x, y = batch
        loss = F.cross_entropy(self.model(x), y)
        self.log("train_loss", loss, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch: list[torch.Tensor], batch_idx: int) -> None:
        x, y = batch
        logits = self.model(x)
        self.log("val_loss", F.cross_entropy(logits, y))
        self.log("val_accuracy", (logits.argmax(1) == y).float().mean())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=self.lr)


def suggest(trial: optuna.Trial) -> dict[str, Any]:
    """Suggest an architecture of `nasflow.space.ready:mlp` and a learning rate, as Optuna distributions."""
    depth = trial.suggest_int("depth", 1, 3)
    return {
        "depth": depth,
        **{f"width{index}": trial.suggest_categorical(f"width{index}", [16, 32, 64]) for index in range(depth)},
        "activation": trial.suggest_categorical("activation", list(ACTIVATIONS)),
        "dropout": trial.suggest_categorical("dropout", [0.0, 0.1, 0.2]),
        "optimizer.lr": trial.suggest_float("optimizer.lr", *LEARNING_RATES, log=True),
    }


class Given(optuna.samplers.BaseSampler):
    """Samples given architectures, the n-th for trial n.

    `enqueue_trial` would do the same, but with SQLite two workers sometimes take the same enqueued trial.
    """

    def __init__(self, architectures: Sequence[Mapping[str, Any]]):
        self._architectures = architectures

    def infer_relative_search_space(self, study: Any, trial: Any) -> dict[str, Any]:
        return {}

    def sample_relative(self, study: Any, trial: Any, search_space: Any) -> dict[str, Any]:
        return {}

    def sample_independent(self, study: Any, trial: Any, param_name: str, param_distribution: Any) -> Any:
        return self._architectures[trial.number][param_name]


def train(architecture: dict[str, Any], epochs: int) -> float:
    """Train an architecture. Return the accuracy on validation data after the last epoch."""
    train_loader, val_loader = load_data()
    trainer = pl.Trainer(
        accelerator="cpu",
        max_epochs=epochs,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
    )
    trainer.fit(
        Classifier(build_model(architecture), float(str(architecture["optimizer.lr"]))), train_loader, val_loader
    )
    return float(trainer.callback_metrics["val_accuracy"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("storage", help="Optuna storage URL")
    parser.add_argument("study")
    parser.add_argument("architectures", type=Path, help="JSON file")
    parser.add_argument("trials", type=int, help="of this worker")
    parser.add_argument("--epochs", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    options = parser.parse_args()
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)

    def objective(trial: optuna.Trial) -> float:
        torch.manual_seed(options.seed + trial.number)
        return train(suggest(trial), options.epochs)

    sampler = Given(json.loads(options.architectures.read_text()))
    study = optuna.load_study(study_name=options.study, storage=options.storage, sampler=sampler)
    study.optimize(objective, n_trials=options.trials)


if __name__ == "__main__":
    main()
