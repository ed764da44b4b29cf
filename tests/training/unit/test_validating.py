"""Metrics that refuse what they are given fail in a step that runs once for all members as in a member's own."""

from pathlib import Path

import pytest
import torch
from torchmetrics.classification import stat_scores

from nasflow.job.events import Planned
from nasflow.training.unit.lockstep.joint.unit import JointUnit
from nasflow.training.unit.lockstep.unit import LockstepUnit
from tests.training.fused_jobs import fused_and_apart, same
from tests.training.jobs import evictions, make_job, outcome, sample, train
from tests.training.unit.test_lockstep import lightning

SPACE = "fused_spaces.py:mixed"
WRONG = {"target": "validating_modules.py:wrong_later"}


def validating(name: str, how: str, **values: object):
    params = {"how": how, "lr": {"float": [1e-3, 1e3 if name == "TakesSmall" else 1e-1]}}
    return lightning(name, file="validating_modules.py", params=params, **values)


@pytest.mark.parametrize("how", ["training", "validation"])
def test_a_member_whose_metric_fails_changes_no_bit_of_the_others(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LockstepUnit, "validate_batch", lambda *args: pytest.fail("its steps ran one by one"))
    config = validating("TakesSmall", how)
    drawn = sample(SPACE, config, 4)
    outcomes = {}
    for rate in (1e-3, 1e3):
        members = {n: {**drawn[n], "module.params.lr": rate if n == 1 else 1e-3} for n in range(4)}
        events = train(make_job(SPACE, config, members, fuse="always"), tmp_path / str(rate))
        assert list(evictions(events)) == ([1] if rate > 1 else [])
        outcomes[rate] = {n: outcome(events, tmp_path / str(rate), n) for n in (0, 2, 3)}
    assert "only the following values [0,1] since `preds`" in evictions(events)[1].error
    alone = evictions(train(make_job(SPACE, config, members), tmp_path / "apart"))
    assert evictions(events)[1].epoch == alone[1].epoch
    for n, one in outcomes[1e-3].items():
        same(one, outcomes[1e3][n], 0.0)


def test_targets_out_of_range_in_a_recorded_step(tmp_path: Path) -> None:
    events = fused_and_apart(SPACE, validating("Validates", "confusion", data=WRONG), tmp_path, 3)
    assert evictions(events).keys() == {0, 1, 2}
    assert all("is invalid for input of size" in event.error for event in evictions(events).values())
    reasons = [reason for event in events if isinstance(event, Planned) for reason in event.alone.values()]
    assert "a unit that it was in has failed" not in reasons


def test_a_validation_that_reads_targets_runs_on_each_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As torchmetrics' own would for predictions in floating point, if it did not leave targets out there."""

    def validate(preds: torch.Tensor, target: torch.Tensor, classes: int, *options: object) -> None:
        if len(torch.unique(target)) > classes or target.max() >= classes:
            raise RuntimeError("targets are out of range")

    steps = []
    run = JointUnit.validate_batch
    monkeypatch.setattr(JointUnit, "validate_batch", lambda self, *args: (steps.append(1), run(self, *args)))
    config = validating("Validates", "accuracy", data=WRONG)
    fused_and_apart(SPACE, config, tmp_path / "unread", 3)  # of float predictions, torchmetrics 1.9 reads no target
    monkeypatch.setattr(stat_scores, "_multiclass_stat_scores_tensor_validation", validate)
    events = fused_and_apart(SPACE, config, tmp_path / "read", 3)
    assert evictions(events).keys() == {0, 1, 2}
    assert all("targets are out of range" in event.error for event in evictions(events).values())
    assert steps
