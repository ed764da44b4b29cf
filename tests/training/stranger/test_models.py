"""Models as strangers bring them train merged to what they train to alone, each in a job of its own."""

import random
from pathlib import Path
from typing import Any

import pytest

from nasflow.job.events import Planned
from nasflow.training.unit import grouping
from tests.training.chosen_costs import ChosenCosts
from tests.training.fused_jobs import fused_and_apart, same
from tests.training.jobs import evaluator, evictions, make_job, outcome, train
from tests.training.models.stranger_spaces import MODELS

pytestmark = pytest.mark.long

SPACE = "stranger_spaces.py:stranger"
ROWS: dict[str, Any] = {"target": "stranger_spaces.py:rows", "params": {"target": "class"}}
ADAGRAD = {"name": "adagrad", "lr": 0.1}
OPTIMIZERS = {"Bag": {"name": "sgd", "lr": 0.1}, "LookUp": ADAGRAD, "HiddenLookUp": ADAGRAD}


@pytest.mark.parametrize("fuse", ["always", "measured"])
@pytest.mark.parametrize("model", MODELS)
def test_merged_is_solo(model: str, fuse: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grouping, "CostModel", ChosenCosts)
    optimizer = OPTIMIZERS.get(model, {"name": "adamw", "lr": 0.02, "weight_decay": 0.1})
    config = evaluator(data=ROWS, precision="64-true", optimizer=optimizer)
    members = {3: {"model": model, "width": 4}, 5: {"model": model, "width": 4}, 8: {"model": model, "width": 6}}
    events = train(make_job(SPACE, config, members, fuse=fuse), tmp_path / "merged")
    assert not evictions(events)
    for trial, values in members.items():
        alone = train(make_job(SPACE, config, {trial: values}), tmp_path / "alone")
        same(outcome(events, tmp_path / "merged", trial), outcome(alone, tmp_path / "alone", trial))


@pytest.mark.parametrize("model", ["TiedByData", "Bag", "LookUp"])
def test_what_no_stack_can_hold_says_why(model: str, tmp_path: Path) -> None:
    config = evaluator(data=ROWS, optimizer={"name": "sgd", "lr": 0.1})  # another precision would part what is tied
    members = {trial: {"model": model, "width": 4} for trial in (3, 5)}
    events = train(make_job(SPACE, config, members, fuse="always"), tmp_path / "merged")
    [planned] = [event for event in events if isinstance(event, Planned)]
    why = {
        "TiedByData": "'one.weight' and 'two.weight' share memory",
        "Bag": "the gradient of 'table' is sparse",
        "LookUp": "the gradient of a look-up is sparse",
    }
    assert planned.alone == dict.fromkeys(members, why[model])
    for trial, values in members.items():
        alone = train(make_job(SPACE, config, {trial: values}), tmp_path / "alone")
        same(outcome(events, tmp_path / "merged", trial), outcome(alone, tmp_path / "alone", trial))


@pytest.mark.parametrize("seed", range(4))
def test_kinds_in_one_job_without_a_comparison(seed: int, tmp_path: Path) -> None:
    """Each model's rows are right by construction: no first step is compared, which would part those that differ."""
    rng = random.Random(seed)
    config = evaluator(data=ROWS, precision="64-true", optimizer={"name": "adamw", "lr": 0.02, "weight_decay": 0.1})
    kinds = rng.sample([model for model in MODELS if model not in OPTIMIZERS], 8)
    members = [{"model": model, "width": rng.choice([4, 6])} for model in [*kinds, kinds[0]]]
    fused_and_apart(SPACE, config, tmp_path, dict(enumerate(members)), all_fused=False, verify="never")
