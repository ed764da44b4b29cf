"""Members of several kinds in one job: each kind that gains is a unit, and each member trains as by itself."""

import random
from pathlib import Path
from typing import Any

import pytest

from nasflow.job.events import Planned
from nasflow.training.unit import grouping
from tests.training.chosen_costs import ChosenCosts
from tests.training.fused_jobs import fused_and_apart, same
from tests.training.interrupted import interrupted
from tests.training.jobs import BLOBS, evaluator, evictions, make_job, outcome, sample, train

SPACE = "unlike_spaces.py:unlike"
CONFIG = evaluator(
    precision="64-true",
    data=BLOBS | {"params": {"batch_size": 24}},
    epochs=3,
    optimizer={"name": "adamw", "lr": {"float": [1e-3, 1e-2], "log": True}},
)
KINDS = ["narrow", "wide", "recurrent", "opaque", "hooked", "nan"]


class Costs(ChosenCosts):
    """Fusing equal layers saves much; fusing unlike members saves next to nothing."""

    def step(self) -> float:
        return 1e-8


def members() -> dict[int, dict[str, Any]]:
    order = [kind for kind in KINDS for _ in range(3)]
    random.Random(3).shuffle(order)
    drawn = sample(SPACE, CONFIG, len(order))
    return {trial: {**drawn[trial], "kind": kind} for trial, kind in enumerate(order)}


@pytest.fixture(autouse=True)
def chosen_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grouping, "CostModel", Costs)


def test_kinds_are_units_of_their_own_and_change_no_result(tmp_path: Path) -> None:
    chosen = members()
    events = fused_and_apart(SPACE, CONFIG, tmp_path, chosen, fuse="measured", all_fused=False)
    plan = next(event for event in events if isinstance(event, Planned))
    kinds = sorted(sorted({chosen[trial]["kind"] for trial in unit.members}) for unit in plan.units)
    assert ["wide"] in kinds
    assert not any({"wide", "recurrent"} <= set(kind) for kind in kinds)
    assert {chosen[trial]["kind"] for trial in plan.alone} <= {"recurrent", "opaque", "hooked", "nan"}
    assert {chosen[trial]["kind"] for trial in evictions(events)} == {"nan"}


def test_a_resumed_job_forms_the_same_units(tmp_path: Path) -> None:
    """Also after members have left: to the same bits."""
    spec = make_job(SPACE, CONFIG, members(), fuse="measured")
    whole = train(spec, tmp_path / "once")
    last = max(trial for trial in members() if trial not in evictions(whole))
    interrupted(spec, tmp_path / "twice", trial=last, epoch=1)
    again = train(spec, tmp_path / "twice")
    for trial in members().keys() - evictions(whole).keys():
        same(outcome(again, tmp_path / "twice", trial), outcome(whole, tmp_path / "once", trial), 0.0)
