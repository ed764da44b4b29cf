"""Steps of LightningModules that run once for all members end as those that run one by one."""

from pathlib import Path

import pytest

from nasflow.job.events import Planned
from nasflow.training.unit.lockstep.joint.unit import JointUnit
from nasflow.training.unit.lockstep.unit import LockstepUnit
from tests.training.fused_jobs import fused_and_apart, fused_members, interrupted_as_whole, same
from tests.training.jobs import evictions, make_job, outcome, sample, train
from tests.training.models import joint_modules
from tests.training.unit.test_lockstep import lightning

SPACE = "fused_spaces.py:mixed"
JOINT = ["Helpers", "Measures", "SkipsSome"]
APART = ["Hyper", "Collects", "Global", "Prints", "Drops", "Penalizes", "LooksInValidation"]


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Counts training steps of units, by how they are made, but not those that are only tried."""
    counted = {"joint": 0, "lockstep": 0}
    for name, kind in (("joint", JointUnit), ("lockstep", LockstepUnit)):

        def step(self: LockstepUnit, batch: object, index: int, name: str = name, run=kind.train_batch) -> None:
            counted[name] += 1
            run(self, batch, index)

        monkeypatch.setattr(kind, "train_batch", step)
    return counted


def joint(name: str, **values: object):
    return lightning(name, file="joint_modules.py", **values)


@pytest.mark.parametrize("name", JOINT)
def test_steps_run_as_one(name: str, tmp_path: Path, steps: dict[str, int]) -> None:
    fused_and_apart(SPACE, joint(name), tmp_path, 5)
    assert steps["joint"] and not steps["lockstep"]


@pytest.mark.parametrize("name", APART)
def test_steps_that_may_differ_run_one_by_one(name: str, tmp_path: Path, steps: dict[str, int]) -> None:
    joint_modules.SEEN.clear()
    fused_and_apart(SPACE, joint(name), tmp_path, 4, all_fused=name != "Penalizes")
    assert steps["lockstep"] or name == "Penalizes"
    assert not steps["joint"] or name == "LooksInValidation"


def test_images_in_single_precision(tmp_path: Path, steps: dict[str, int]) -> None:
    config = joint("Measures", precision="32-true", data={"target": "spaces.py:images"}, epochs=2)
    fused_and_apart("fused_spaces.py:images", config, tmp_path, 5, tolerance=1e-2, all_fused=False, fuse="measured")
    assert steps["joint"] or not steps["lockstep"]


def test_members_that_end_at_different_epochs(tmp_path: Path, steps: dict[str, int]) -> None:
    fused_and_apart(SPACE, joint("Measures", epochs={"pick": [1, 2, 4]}), tmp_path, 6)
    assert steps["joint"] and not steps["lockstep"]


def test_a_member_whose_loss_is_not_finite_changes_no_bit_of_the_others(tmp_path: Path, steps: dict[str, int]) -> None:
    config = joint("Diverges", params={"lr": {"float": [1e-7, 1e250]}})
    drawn = sample(SPACE, config, 4)
    outcomes = {}
    for rate in (1e-3, 1e200):
        members = {n: {**drawn[n], "module.params.lr": rate if n == 1 else 1e-6} for n in range(4)}
        events = train(make_job(SPACE, config, members, fuse="always"), tmp_path / str(rate))
        assert fused_members(events) == {0, 1, 2, 3}
        assert list(evictions(events)) == ([1] if rate > 1 else [])
        outcomes[rate] = {n: outcome(events, tmp_path / str(rate), n) for n in (0, 2, 3)}
    assert steps["joint"] and not steps["lockstep"]
    for n, one in outcomes[1e-3].items():
        same(one, outcomes[1e200][n], 0.0)


@pytest.mark.parametrize("name", JOINT)
def test_an_interrupted_job_goes_on_to_the_same_bits(name: str, tmp_path: Path, steps: dict[str, int]) -> None:
    spec = make_job(SPACE, joint(name), sample(SPACE, joint(name), 4), fuse="always")
    interrupted_as_whole(spec, tmp_path)
    assert steps["joint"] and not steps["lockstep"]


def test_a_step_that_turns_out_to_differ_is_made_again_one_by_one(tmp_path: Path, steps: dict[str, int]) -> None:
    fused_and_apart(SPACE, joint("LooksLater"), tmp_path, 4)
    assert steps["joint"] and steps["lockstep"]


def test_a_loss_without_a_gradient_is_each_members_own_failure(tmp_path: Path, steps: dict[str, int]) -> None:
    events = fused_and_apart(SPACE, joint("Detaches"), tmp_path, 3)
    reasons = [reason for event in events if isinstance(event, Planned) for reason in event.alone.values()]
    assert steps["joint"]
    assert evictions(events).keys() == {0, 1, 2}
    assert "a unit that it was in has failed" not in reasons
