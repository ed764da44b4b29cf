"""A study of four small MLPs with Optuna and Lightning; touches a file when the first epoch has ended."""

import argparse
import logging
import warnings
from pathlib import Path

import optuna
import pytorch_lightning as pl

from benchmarks.optuna_worker import Classifier, suggest
from benchmarks.plain_mlp import build_model, load_data


class FirstEpoch(pl.Callback):
    """Touches a file at the end of an epoch, its validation included."""

    def __init__(self, mark: Path):
        self._mark = mark

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._mark.touch()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("mark", type=Path)
    parser.add_argument("--trials", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=3)
    options = parser.parse_args()
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore")

    def objective(trial: optuna.Trial) -> float:
        architecture = suggest(trial)
        trainer = pl.Trainer(
            accelerator="cpu",
            max_epochs=options.epochs,
            callbacks=[FirstEpoch(options.mark)],
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            num_sanity_val_steps=0,
        )
        lr = float(str(architecture["optimizer.lr"]))
        trainer.fit(Classifier(build_model(architecture), lr), *load_data())
        return float(trainer.callback_metrics["val_accuracy"])

    storage = f"sqlite:///{options.mark.with_name('optuna.db')}"
    optuna.create_study(storage=storage, direction="maximize").optimize(objective, n_trials=options.trials)


if __name__ == "__main__":
    main()
