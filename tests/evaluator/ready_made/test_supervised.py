"""Classification and regression: their numbers are torch's and scikit-learn's, and plain Lightning trains them too."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from pytorch_lightning import LightningModule, Trainer
from sklearn import metrics as sk
from torch import nn
from torch.nn import functional as F

from nasflow.config.search import ClassificationConfig, DataConfig, RegressionConfig
from nasflow.errors import TrialError
from nasflow.evaluator.loading.data_source import load_data
from nasflow.evaluator.loading.loaders import TensorLoader
from nasflow.evaluator.ready_made.supervised import Classification, Regression, SupervisedModule

DATA = {"target": "a:b"}


class Given(nn.Module):
    """Outputs its input, through a parameter that is one."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Parameter(torch.ones(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.one


def trainer(**options: Any) -> Trainer:
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    return Trainer(accelerator="cpu", enable_model_summary=False, **quiet, **options)


def classification(model: nn.Module | None = None, **values: Any) -> LightningModule:
    return Classification(ClassificationConfig.model_validate({"data": DATA, **values})).module(model or Given())


def regression(model: nn.Module | None = None, **values: Any) -> LightningModule:
    return Regression(RegressionConfig.model_validate({"data": DATA, **values})).module(model or Given())


def scores(module: LightningModule, outputs: torch.Tensor, targets: torch.Tensor) -> dict[str, float]:
    """What it logs for these outputs, in three batches of unequal size."""
    loader = TensorLoader((outputs, targets), batch_size=len(targets) * 2 // 5)
    [found] = trainer().validate(module, loader, verbose=False)
    return dict(found)


@pytest.mark.parametrize("classes", [2, 4])
def test_classification_metrics(classes: int) -> None:
    generator = torch.Generator().manual_seed(classes)
    targets = torch.arange(50) % classes
    logits = torch.randn(50, classes, generator=generator) + 0.8 * F.one_hot(targets, classes)
    names = ["accuracy", "f1", "precision", "recall", "auroc"]
    found = scores(classification(metrics=names), logits, targets)
    answers, chances = logits.argmax(1), logits.softmax(1)
    auroc = sk.roc_auc_score(targets, chances[:, 1] if classes == 2 else chances, multi_class="ovr", average="macro")
    assert found == pytest.approx(
        {
            "val_loss": F.cross_entropy(logits, targets).item(),
            "val_accuracy": sk.accuracy_score(targets, answers),
            "val_f1": sk.f1_score(targets, answers, average="macro"),
            "val_precision": sk.precision_score(targets, answers, average="macro"),
            "val_recall": sk.recall_score(targets, answers, average="macro"),
            "val_auroc": auroc,
        },
        rel=1e-5,
    )


def test_only_the_metrics_asked_for() -> None:
    logits, targets = torch.eye(10)[:, :3], torch.zeros(10, dtype=torch.long)
    assert scores(classification(), logits, targets).keys() == {"val_loss", "val_accuracy"}
    assert scores(classification(metrics=[]), logits, targets).keys() == {"val_loss"}
    assert scores(regression(), logits[:, 0], logits[:, 0]).keys() == {"val_loss", "val_rmse", "val_r2"}


@pytest.mark.parametrize(
    ("output_shape", "target_shape"), [((40,), (40,)), ((40, 1), (40,)), ((40, 1), (40, 1)), ((40, 3), (40, 3))]
)
def test_regression_metrics(output_shape: tuple[int, ...], target_shape: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(0)
    outputs = torch.randn(output_shape, generator=generator)
    targets = outputs.reshape(target_shape) + torch.randn(target_shape, generator=generator)
    found = scores(regression(metrics=["mse", "rmse", "mae", "r2"]), outputs, targets)
    y, predicted = targets.reshape(40, -1).numpy(), outputs.reshape(40, -1).numpy()
    mse = sk.mean_squared_error(y, predicted)
    assert found == pytest.approx(
        {
            "val_loss": mse,
            "val_mse": mse,
            "val_rmse": math.sqrt(mse),
            "val_mae": sk.mean_absolute_error(y, predicted),
            "val_r2": sk.r2_score(y, predicted),
        },
        rel=1e-5,
    )


@pytest.mark.parametrize(("name", "loss"), [("mse", F.mse_loss), ("mae", F.l1_loss), ("huber", F.huber_loss)])
def test_regression_losses(name: str, loss: Any) -> None:
    generator = torch.Generator().manual_seed(0)
    outputs, targets = torch.randn(2, 40, generator=generator) * 2
    found = scores(regression(loss=name), outputs, targets)
    assert found["val_loss"] == pytest.approx(loss(outputs, targets).item(), rel=1e-5)


def test_label_smoothing() -> None:
    generator = torch.Generator().manual_seed(0)
    logits, targets = torch.randn(40, 3, generator=generator), torch.arange(40) % 3
    found = scores(classification(label_smoothing=0.2), logits, targets)["val_loss"]
    assert found == pytest.approx(F.cross_entropy(logits, targets, label_smoothing=0.2).item(), rel=1e-5)
    assert found != pytest.approx(F.cross_entropy(logits, targets).item(), rel=1e-3)


@pytest.mark.parametrize(
    ("module", "outputs", "targets", "said"),
    [
        (classification, (4, 1), (4,), r"classification needs logits \[B, C\] with C >= 2; the model gives \(4, 1\)"),
        (classification, (4, 3, 2), (4, 2), r"classification needs logits .* the model gives \(4, 3, 2\)"),
        (regression, (4, 2), (4,), r"predictions have shape \(4, 2\), targets \(4,\)"),
        (regression, (4,), (4, 2), r"predictions have shape \(4,\), targets \(4, 2\)"),
    ],
)
def test_a_model_of_the_wrong_shape_is_told_so(
    module: Any, outputs: tuple[int, ...], targets: tuple[int, ...], said: str
) -> None:
    kind = torch.long if module is classification else torch.float
    with pytest.raises(TrialError, match=said):
        module().validation_step((torch.zeros(outputs), torch.zeros(targets, dtype=kind)), 0)


def test_frozen_parameters_are_left_alone() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2))
    model[0].requires_grad_(False)
    configured = classification(model).configure_optimizers()
    trained = [p for group in configured["optimizer"].param_groups for p in group["params"]]
    assert {id(p) for p in trained} == {id(p) for p in model[1].parameters()}


TRAINED = {
    "Wine": (classification, 13, 3, {"val_accuracy": 0.9, "val_f1": 0.9}),
    "BreastCancer": (classification, 30, 2, {"val_accuracy": 0.93, "val_auroc": 0.97}),
    "DigitsRows": (classification, 64, 10, {"val_accuracy": 0.9}),
    "Digits": (classification, 64, 10, {"val_accuracy": 0.9}),
    "Diabetes": (regression, 10, 1, {"val_r2": 0.3}),
}


@pytest.mark.parametrize("name", TRAINED)
def test_plain_lightning_trains_each_shipped_set(name: str) -> None:
    """A few epochs of a small model; the module is an ordinary LightningModule."""
    make, features, outputs, wanted = TRAINED[name]
    torch.manual_seed(0)
    data = load_data(DataConfig(target=f"nasflow.evaluator.data:{name}"), Path())
    model = nn.Sequential(nn.Flatten(), nn.Linear(features, 32), nn.ReLU(), nn.Linear(32, outputs))
    metrics = [metric.removeprefix("val_") for metric in wanted]
    module = make(model, metrics=metrics, epochs=6, optimizer={"lr": 0.01}, schedule={"name": "cosine"})
    assert isinstance(module, SupervisedModule)
    fitted = trainer(max_epochs=6)
    fitted.fit(module, data.train, data.validation)
    found = fitted.callback_metrics
    assert found.keys() == {"train_loss", "val_loss", *wanted}
    for metric, least in wanted.items():
        assert found[metric] > least
    assert fitted.optimizers[0].param_groups[0]["lr"] == pytest.approx(0, abs=1e-12), "the schedule ran to its end"
