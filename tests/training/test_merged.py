"""A member's result does not depend on who else is in its job: metrics, weights, all it would go on from."""

import random
from pathlib import Path
from typing import Any

import pytest

from nasflow.config.search import EvaluatorConfig
from nasflow.job.events import Event, Final
from tests.training.jobs import Outcome, evaluator, evictions, make_job, outcome, sample, train

ROWS = evaluator(
    data={"target": "nasflow.evaluator.data:DigitsRows", "params": {"batch_size": 192, "val_fraction": 0.6}},
    precision="64-true",
    epochs={"int": [2, 5]},
    gradient_clip_val={"pick": [0.05, 0.5]},
    optimizer={
        "name": {"pick": ["sgd", "adamw"]},
        "lr": {"float": [1e-3, 1e-1], "log": True},
        "weight_decay": {"pick": [0.0, 0.1]},
    },
    schedule={"name": {"pick": ["cosine", "step", "linear"]}, "warmup_epochs": {"int": [0, 2]}, "step_size": 2},
    early_stopping={"metric": "val_accuracy", "direction": "maximize", "patience": {"int": [1, 2]}, "min_delta": 0.02},
)
MLP = "nasflow.space.ready:mlp"
SHORT = {"epochs": {"int": [1, 3]}, "optimizer": {"lr": {"float": [1e-3, 1e-1], "log": True}}}


def merged_and_alone(space: str, config: EvaluatorConfig, root: Path, count: int = 4) -> list[Event]:
    """Train all merged in a shuffled order, in pairs, and alone: each member's outcomes are the same, bit for bit."""
    members = dict(enumerate(sample(space, config, count)))
    order = random.Random(3).sample(sorted(members), count)
    pairs = [[trial + 1, trial] for trial in range(0, count, 2)]
    found: dict[int, list[Outcome]] = {trial: [] for trial in members}
    told: list[Event] = []
    for company in (order, *pairs, *([trial] for trial in members)):
        apart = root / "-".join(map(str, company))
        events = train(make_job(space, config, {trial: members[trial] for trial in company}), apart)
        assert not evictions(events)
        for trial in company:
            found[trial].append(outcome(events, apart, trial))
        told = told or events
    for merged, paired, alone in found.values():
        assert merged.final is not None
        assert paired == merged
        assert alone == merged
    return told


def test_sixteen_mlps_in_float64(tmp_path: Path) -> None:
    """With dropout and, searched: learning rates, optimizers, schedules, clipping, epochs and patience."""
    merged = merged_and_alone(MLP, ROWS, tmp_path, 16)
    finals = [event for event in merged if isinstance(event, Final)]
    assert len({event.metrics["val_loss"] for event in finals}) == 16
    assert len({event.epochs for event in finals}) > 2, "members end at different epochs"
    assert {event.stopped_early for event in finals} == {True, False}


@pytest.mark.parametrize("clipping", [{"gradient_clip_algorithm": "value", "gradient_clip_val": 0.001}, {}])
def test_mlps_in_float64_clipped_by_value_and_not_at_all(clipping: dict[str, Any], tmp_path: Path) -> None:
    changes = {"gradient_clip_val": None, "data": evaluator().data, **clipping}
    merged_and_alone("spaces.py:net", ROWS.model_copy(update=changes), tmp_path)


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_convolutions_with_batch_norm(precision: str, tmp_path: Path) -> None:
    config = evaluator(data={"target": "spaces.py:images"}, precision=precision, gradient_clip_val=0.3, **SHORT)
    merged_and_alone("spaces.py:cnn", config, tmp_path)


def noisy(name: str, data: str, **params: Any) -> EvaluatorConfig:
    module = {"target": f"lightning_modules.py:{name}", "params": {"lr": {"pick": [0.01, 0.1]}, **params}}
    return evaluator(kind="lightning", module=module, data={"target": f"spaces.py:{data}"}, epochs={"int": [2, 3]})


@pytest.mark.parametrize("how", ["always", "late"])
def test_a_module_that_draws_and_writes_into_its_batches(how: str, tmp_path: Path) -> None:
    merged_and_alone("spaces.py:net", noisy("Noisy", "blobs", how=how), tmp_path)


def test_a_module_that_takes_its_batches_apart(tmp_path: Path) -> None:
    merged_and_alone("spaces.py:net", noisy("Takes", "dicts"), tmp_path)


@pytest.mark.parametrize("data", ["augmented", "TransferAugmented"])
def test_augmented_data(data: str, tmp_path: Path) -> None:
    config = evaluator(data={"target": f"spaces.py:{data}"}, **SHORT)
    merged_and_alone("spaces.py:net", config, tmp_path)


def test_the_seed_of_the_data_and_of_the_trial_matter(tmp_path: Path) -> None:
    """Else the equalities above would show nothing."""
    config = evaluator(data={"target": "spaces.py:TransferAugmented"})
    [values] = sample("spaces.py:net", config, 1)
    outcomes = []
    for trial, data_seed in [(0, 5), (0, 6), (1, 5)]:
        root = tmp_path / f"{trial}-{data_seed}"
        events = train(make_job("spaces.py:net", config, {trial: values}, data_seed), root)
        outcomes.append(outcome(events, root, trial))
    losses = {str(one.epochs) for one in outcomes}
    assert len(losses) == 3
