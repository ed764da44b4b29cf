"""The parts a member is made of: its logbook and its early stop."""

import math
from collections import UserDict, namedtuple
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torchmetrics

from nasflow.config.search import EarlyStoppingConfig
from nasflow.errors import TrialError
from nasflow.training.member.metrics.metric_log import Logbook, batch_size_of
from nasflow.training.member.optimization import EarlyStop

Batch = namedtuple("Batch", ["name", "x"])


@dataclass
class Fields:
    name: str
    deep: dict[str, torch.Tensor]


@pytest.mark.parametrize(
    ("batch", "size"),
    [
        (torch.zeros(5, 2), 5),
        ((torch.zeros(5, 2), torch.zeros(7)), 5),
        ({"ids": ["a", "b", "c"], "x": torch.zeros(3, 1)}, 3),
        (["name", {"deep": (torch.tensor(1.0), torch.zeros(4))}], 4),
        (UserDict(x=torch.zeros(6)), 6),
        (Batch("name", torch.zeros(2)), 2),
        (Fields("name", {"x": torch.zeros(5)}), 5),
        ([Fields], 1),
        (torch.tensor(3.0), 1),
        ("text", 1),
        ([], 1),
    ],
    ids=lambda value: str(value)[:30],
)
def test_batch_size(batch: Any, size: int) -> None:
    assert batch_size_of(batch) == size


def test_numbers_become_their_mean_over_samples() -> None:
    book = Logbook()
    for size, value in ((2, 1.0), (6, torch.tensor(3.0)), (4, 0)):
        book.batch_size = size
        book.log("loss", value, prog_bar=True)
    book.log("given", 5, batch_size=3)
    book.log("given", 1.0, batch_size=1)
    book.log_dict({"a": torch.tensor([2.0]), "b": torch.tensor(True)}, on_epoch=True)
    assert book.close_epoch() == {"loss": 20 / 12, "given": 4.0, "a": 2.0, "b": 1.0}
    assert book.close_epoch() == {}


def test_sums_do_not_lose_small_losses() -> None:
    book = Logbook()
    for _ in range(1000):
        book.log("loss", torch.tensor(1e-4), batch_size=1)
    book.log("loss", torch.tensor(1e4), batch_size=1)
    assert book.close_epoch()["loss"] == pytest.approx((0.1 + 1e4) / 1001, rel=1e-9)


def test_what_is_logged_holds_no_graph() -> None:
    book = Logbook()
    weight = torch.ones(1, requires_grad=True)
    book.log("loss", (weight * 2).sum())
    [(total, _)] = book._sums.values()
    assert isinstance(total, torch.Tensor)
    assert not total.requires_grad


def test_metrics_are_computed_once_over_the_epoch_and_start_anew() -> None:
    book = Logbook()
    accuracy = torchmetrics.classification.BinaryAccuracy()
    for predicted, target in (([1, 1, 1], [1, 1, 0]), ([0], [1])):
        accuracy.update(torch.tensor(predicted), torch.tensor(target))
        book.log("accuracy", accuracy)
    assert book.close_epoch() == {"accuracy": 0.5}
    accuracy.update(torch.tensor([1]), torch.tensor([1]))
    book.log_dict(torchmetrics.MetricCollection({"accuracy": accuracy}))
    assert book.close_epoch() == {"accuracy": 1.0}


def stops(values: list[float], **config: Any) -> int | None:
    """After which of these epochs it stops."""
    early_stop = EarlyStop(EarlyStoppingConfig(**config))
    for epoch, value in enumerate(values, start=1):
        if early_stop.update({"val_loss": value, "other": 0.0}):
            return epoch
    return None


@pytest.mark.parametrize(
    ("values", "config", "epoch"),
    [
        ([3.0, 2.0, 1.0, 0.5], {"patience": 1}, None),
        ([3.0, 2.0, 2.0], {"patience": 1}, 3),
        ([3.0, 2.0, 2.5, 1.9, 2.0, 2.0], {"patience": 2}, 6),
        ([3.0, 2.95, 2.9, 2.85], {"patience": 2, "min_delta": 0.2}, 3),
        ([3.0, 2.9, 2.7, 2.6], {"patience": 2, "min_delta": 0.2}, None),
        ([0.1, 0.2, 0.3], {"patience": 1, "direction": "maximize"}, None),
        ([0.1, 0.3, 0.2, 0.2], {"patience": 2, "direction": "maximize"}, 4),
        ([math.nan, math.nan], {"patience": 2}, 2),
        ([1.0, math.inf, 1.0, 0.5], {"patience": 3}, None),
    ],
)
def test_early_stop(values: list[float], config: dict[str, Any], epoch: int | None) -> None:
    assert stops(values, **config) == epoch


def test_an_early_stop_goes_on_from_its_state() -> None:
    config = EarlyStoppingConfig(patience=3)
    first, second = EarlyStop(config), EarlyStop(config)
    assert [first.update({"val_loss": value}) for value in (1.0, 2.0, 2.0)] == [False] * 3
    second.load_state_dict(first.state_dict())
    assert second.update({"val_loss": 1.0})


def test_an_early_stop_on_an_unknown_metric_names_the_known() -> None:
    early_stop = EarlyStop(EarlyStoppingConfig(metric="val_f1"))
    with pytest.raises(TrialError, match=r"early_stopping.metric: no metric 'val_f1' .*: a, val_loss"):
        early_stop.update({"val_loss": 1.0, "a": 2.0})
    with pytest.raises(TrialError, match="there are: none"):
        early_stop.update({})
