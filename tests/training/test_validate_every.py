"""`evaluator.validate_every`: fewer validations change nothing of training; what needs one waits for it."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from nasflow.config.search import EvaluatorConfig
from nasflow.config.strategy import MedianPrunerConfig
from nasflow.job.events import Epoch, Event, Final
from nasflow.job.spec import stop_mark
from tests.training.fused_jobs import fused_and_apart, interrupted_as_whole
from tests.training.jobs import evaluator, make_job, sample, train, weights
from tests.training.schedule.test_places import ACCURATE, but

NET = "spaces.py:net"
EVERY: dict[str, Any] = {"epochs": 4, "validate_every": 2, "precision": "64-true"}
MODULE: dict[str, Any] = {"kind": "lightning", "module": {"target": "lightning_modules.py:Hooked"}}
LR = {"optimizer": {"lr": {"float": [1e-3, 1e-1], "log": True}}}


def by_epoch(events: Iterable[Event], trial: int = 0) -> dict[int, dict[str, float]]:
    return {e.epoch: dict(e.metrics) for e in events if isinstance(e, Epoch) and e.trial == trial}


def finals(events: Iterable[Event]) -> dict[int, Final]:
    return {event.trial: event for event in events if isinstance(event, Final)}


@pytest.mark.parametrize("fuse", ["never", "always"])
def test_what_is_validated_is_as_if_every_epoch_were(fuse: Any, tmp_path: Path) -> None:
    drawn = sample(NET, evaluator(**EVERY, **LR), 3)
    jobs = {
        every: make_job(NET, evaluator(**EVERY | {"validate_every": every}, **LR), drawn, fuse=fuse) for every in (1, 2)
    }
    told = {every: train(job, tmp_path / str(every)) for every, job in jobs.items()}
    for trial in range(3):
        each, second = by_epoch(told[1], trial), by_epoch(told[2], trial)
        assert {epoch: set(metrics) for epoch, metrics in second.items()} == {
            1: {"train_loss"},
            2: {"train_loss", "val_loss", "val_accuracy"},
            3: {"train_loss"},
            4: {"train_loss", "val_loss", "val_accuracy"},
        }
        assert second == {epoch: {name: each[epoch][name] for name in metrics} for epoch, metrics in second.items()}
        assert finals(told[1])[trial].metrics == finals(told[2])[trial].metrics
        one, other = (weights(tmp_path / str(every), trial) for every in (1, 2))
        assert all((one[name] == other[name]).all() for name in one.keys() | other.keys())


CONFIGS: dict[str, EvaluatorConfig] = {
    "ready-made": evaluator(**EVERY, **LR),
    "plateau": evaluator(**EVERY, **LR, schedule={"name": "plateau", "metric": "val_loss", "patience": 0}),
    "averaged": evaluator(**EVERY, **LR, ema={"decay": 0.7}),
    "stops": evaluator(
        **EVERY | {"epochs": 6}, **LR, early_stopping={"metric": "val_loss", "patience": 1, "min_delta": 9}
    ),
    "of some epochs": evaluator(**EVERY | {"epochs": {"pick": [2, 4]}}, **LR),
    "repeats": evaluator(**EVERY, **LR, repeats=2),
    "a module": evaluator(**EVERY | MODULE),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_fused_and_apart(name: str, tmp_path: Path) -> None:
    space = "spaces.py:linear" if name == "a module" else NET
    members = {trial: {"classes": 3} for trial in range(3)} if name == "a module" else 4
    fused_and_apart(space, CONFIGS[name], tmp_path, members, all_fused=name != "a module")


@pytest.mark.parametrize("name", ["plateau", "stops", "averaged"])
def test_resumed_to_the_same_bits(name: str, tmp_path: Path) -> None:
    interrupted_as_whole(make_job(NET, CONFIGS[name], sample(NET, CONFIGS[name], 3), fuse="always"), tmp_path)


def test_hooks_of_validation_are_called_when_there_is_one(tmp_path: Path) -> None:
    [*metrics] = by_epoch(train(make_job("spaces.py:linear", CONFIGS["a module"], [{"classes": 3}]), tmp_path)).values()
    assert [each.get("on_validation_epoch_start", 0) for each in metrics] == [
        0,
        1,
        1,
        2,
    ]
    assert [each["on_train_epoch_end"] for each in metrics] == [1, 2, 3, 4]


@pytest.mark.parametrize("metric", ["val_loss", "train_loss"])
def test_no_trial_stops_early_without_a_validation(metric: str, tmp_path: Path) -> None:
    stopping = {"metric": metric, "patience": 1, "min_delta": 9}
    events = train(
        make_job(NET, evaluator(**EVERY | {"epochs": 8}, early_stopping=stopping), sample(NET, evaluator(), 2)),
        tmp_path,
    )
    for final in finals(events).values():
        assert (final.epochs, final.stopped_early) == (4 if metric == "val_loss" else 2, True)
        assert "val_accuracy" in final.metrics


def test_a_pruner_and_a_request_to_stop_wait_for_the_validation(tmp_path: Path) -> None:
    config = evaluator(**EVERY | {"epochs": 8}, **LR)
    spec = but(
        make_job(NET, config, sample(NET, config, 5)),
        pruner=MedianPrunerConfig(warmup_epochs=0, min_others=2),
        objectives=ACCURATE,
    )
    events = train(spec, tmp_path / "pruned")
    ends = {trial: final.epochs for trial, final in finals(events).items()}
    assert set(ends) == set(range(5)) and min(ends.values()) < 8 and all(end % 2 == 0 for end in ends.values())

    mark = stop_mark(tmp_path / "asked", 0)
    mark.parent.mkdir(parents=True)
    mark.touch()  # before its first epoch, which is not validated
    asked = train(make_job(NET, config, sample(NET, config, 1)), tmp_path / "asked")
    assert (finals(asked)[0].epochs, finals(asked)[0].stopped_early) == (2, True)


@pytest.mark.parametrize(
    "epochs", [{"int": [2, 8], "step": 2}, {"int": [4, 4]}, {"int": [2, 2 * 10**9], "step": 2}, {"pick": [2, 8]}]
)
def test_searched_epochs_that_it_divides(epochs: dict[str, Any]) -> None:
    assert evaluator(**EVERY | {"epochs": epochs}).validate_every == 2


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"validate_every": 3}, "'validate_every' is 3, which does not divide 'epochs', 4"),
        ({"epochs": 8, "stop_after": 3}, "'validate_every' is 2, which does not divide 'stop_after', 3"),
        ({"epochs": {"pick": [4, 3]}}, "'validate_every' is 2, which does not divide 'epochs', 3"),
        ({"epochs": {"int": [2, 4]}}, "'validate_every' is 2, which does not divide 'epochs', 3"),
        ({"epochs": {"int": [2, 8], "step": 3}}, "'validate_every' is 2, which does not divide 'epochs', 5"),
        ({"validate_every": 0}, "greater than 0"),
    ],
)
def test_mistakes_of_the_config(values: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        evaluator(**EVERY | values)
