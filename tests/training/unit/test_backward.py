"""What a member draws in its backward comes from its own stream, merged or not."""

from pathlib import Path
from typing import Literal

import pytest

from nasflow.job.events import Planned
from nasflow.training.unit import grouping
from tests.training.fused_jobs import fused_and_apart, fused_members, same
from tests.training.jobs import evaluator, make_job, outcome, train

CONFIG = evaluator(precision="64-true", optimizer={"name": "sgd", "lr": 0.05})
MEMBERS = {0: {"width": 4}, 1: {"width": 6}, 2: {"width": 4}}
DRAWS = "a backward of its own may draw random numbers"
REASONS = {
    "by_class": DRAWS,
    "by_helper": DRAWS,
    "by_quiet_helper": DRAWS,
    "by_hook": grouping.DIFFERS,
    "untraced": "it can't be traced",
}


@pytest.mark.parametrize("space", REASONS)
def test_such_members_train_by_themselves(space: str, tmp_path: Path) -> None:
    events = fused_and_apart(f"backward_spaces.py:{space}", CONFIG, tmp_path, MEMBERS, all_fused=False)
    assert not fused_members(events)
    plan = next(event for event in events if isinstance(event, Planned))
    assert plan.alone.keys() == MEMBERS.keys()
    assert plan.alone[0].startswith(REASONS[space])


@pytest.mark.parametrize("verify", ["start", "never"])
def test_a_class_with_its_own_backward_needs_no_comparison(verify: Literal["start", "never"], tmp_path: Path) -> None:
    spec = make_job("backward_spaces.py:by_class", CONFIG, MEMBERS, fuse="always")
    spec = spec.model_copy(update={"merge": spec.merge.model_copy(update={"verify": verify})})
    events = train(spec, tmp_path / "together")
    alone = train(make_job("backward_spaces.py:by_class", CONFIG, {1: MEMBERS[1]}), tmp_path / "alone")
    same(outcome(events, tmp_path / "together", 1), outcome(alone, tmp_path / "alone", 1))
