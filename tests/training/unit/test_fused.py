"""Members that train fused end as if each had been stepped by itself."""

from pathlib import Path
from typing import Any

import pytest

from nasflow.job.events import Final
from tests.training.fused_jobs import fused_and_apart
from tests.training.jobs import BLOBS, evaluator, evictions

EXACT: dict[str, Any] = {"precision": "64-true", "epochs": 2, "data": BLOBS | {"params": {"batch_size": 24}}}
LR = {"float": [1e-3, 1e-1], "log": True}
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "momentum": {
        "name": {"pick": ["sgd", "rmsprop"]},
        "momentum": {"pick": [0.0, 0.9]},
        "weight_decay": {"pick": [0.0, 0.1]},
    },
    "adam": {
        "name": {"pick": ["adam", "adamw"]},
        "betas": [{"pick": [0.8, 0.9]}, 0.99],
        "weight_decay": {"pick": [0.0, 0.1]},
    },
    "one by one": {"name": {"pick": ["nadam", "adagrad", "adamw"]}},
}


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_optimizers_are_searched(kind: str, tmp_path: Path) -> None:
    config = evaluator(**EXACT, optimizer={"lr": LR, **OPTIMIZERS[kind]}, label_smoothing={"pick": [0.0, 0.1]})
    fused_and_apart("fused_spaces.py:mixed", config, tmp_path, 8)


def test_schedules_clipping_and_early_stops(tmp_path: Path) -> None:
    """Members leave at different epochs, and the others go on in smaller units."""
    config = evaluator(
        **EXACT | {"epochs": {"int": [2, 6]}},
        optimizer={"name": {"pick": ["sgd", "adamw"]}, "lr": LR},
        schedule={"name": {"pick": ["cosine", "step", "linear"]}, "warmup_epochs": {"int": [0, 2]}, "step_size": 2},
        gradient_clip_val={"pick": [0.05, 0.5]},
        early_stopping={"metric": "val_loss", "direction": "minimize", "patience": {"int": [1, 2]}, "min_delta": 0.02},
    )
    events = fused_and_apart("fused_spaces.py:mixed", config, tmp_path, 8)
    finals = [event for event in events if isinstance(event, Final)]
    assert len({event.epochs for event in finals}) > 1
    assert {event.stopped_early for event in finals} == {True, False}


def test_clipping_by_value_and_many_metrics(tmp_path: Path) -> None:
    metrics = ["accuracy", "f1", "precision", "recall", "auroc"]
    config = evaluator(**EXACT, gradient_clip_val=0.01, gradient_clip_algorithm="value", metrics=metrics)
    fused_and_apart("fused_spaces.py:mixed", config, tmp_path)


def test_regression(tmp_path: Path) -> None:
    config = evaluator(
        **EXACT | {"data": {"target": "fused_spaces.py:numbers"}},
        kind="regression",
        loss={"pick": ["mse", "mae", "huber"]},
        metrics=["rmse", "mae", "r2"],
    )
    fused_and_apart("fused_spaces.py:valued", config, tmp_path)


@pytest.mark.parametrize("space", ["images", "counting", "ragged", "frozen_trunk"])
def test_spaces(space: str, tmp_path: Path) -> None:
    """Images with dropout; modules that can't be traced; outputs of different shapes; two frozen trunks."""
    data = {"target": "spaces.py:images"} if space == "images" else EXACT["data"]
    config = evaluator(**EXACT | {"data": {**data, "params": {"batch_size": 24}}}, optimizer={"lr": LR})
    fused_and_apart(f"fused_spaces.py:{space}", config, tmp_path, 8)


def test_augmented_batches(tmp_path: Path) -> None:
    fused_and_apart("fused_spaces.py:mixed", evaluator(**EXACT | {"data": {"target": "spaces.py:augmented"}}), tmp_path)


def test_what_was_measured_decides(tmp_path: Path) -> None:
    """Fused or not: the results are the same."""
    fused_and_apart("fused_spaces.py:mixed", evaluator(**EXACT), tmp_path, 6, fuse="measured", all_fused=False)


def test_a_last_batch_of_one_fails_those_with_batch_norm(tmp_path: Path) -> None:
    config = evaluator(**EXACT | {"data": {"target": "fused_spaces.py:ones"}})
    events = fused_and_apart("fused_spaces.py:mixed", config, tmp_path, 6)
    assert 0 < len(evictions(events)) < 6
    assert all("Expected more than 1 value per channel" in event.error for event in evictions(events).values())
