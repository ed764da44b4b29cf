"""LightningModules of the user that are fused end as if each had been stepped by itself."""

from pathlib import Path
from typing import Any

import pytest

from nasflow.job.events import Planned
from nasflow.training.unit.reasons import CHANGES, INNER_BACKWARD
from tests.training.fused_jobs import fused_and_apart, fused_members, interrupted_as_whole, same
from tests.training.jobs import evaluator, evictions, make_job, outcome, sample, train, weights

STYLES = [
    *("Plain", "CustomLoss", "TwoCalls", "Mixup", "L1", "OwnParameter", "Teacher", "StepSchedule", "Groups"),
    *(
        "SometimesNone",
        "SometimesNoneMomentum",
        "SometimesNoneAdamW",
        "Forward",
        "NoGradFirst",
        "Counting",
        "OwnWarmup",
    ),
]


def lightning(name: str, **values: Any) -> Any:
    file = values.pop("file", "lockstep_modules.py")
    params = {"lr": {"float": [1e-2, 1e-1]}, **values.pop("params", {})}
    data = values.pop("data", {"target": "spaces.py:blobs"})
    module = {"target": f"{file}:{name}", "params": params}
    return evaluator(kind="lightning", module=module, data=data, **{"precision": "64-true", "epochs": 3, **values})


@pytest.mark.parametrize(
    ("space", "name"),
    [*(("mixed", name) for name in STYLES), *(("images", name) for name in STYLES if name != "Forward")],
)
def test_a_style(space: str, name: str, tmp_path: Path) -> None:
    data = {"target": f"spaces.py:{'blobs' if space == 'mixed' else 'images'}"}
    fused_and_apart(f"fused_spaces.py:{space}", lightning(name, data=data), tmp_path, 5)


def test_batches_that_are_dicts(tmp_path: Path) -> None:
    fused_and_apart("fused_spaces.py:mixed", lightning("Dicts", data={"target": "spaces.py:dicts"}), tmp_path, 4)


def test_steps_that_write_into_their_batches(tmp_path: Path) -> None:
    config = lightning("Noisy", file="lightning_modules.py", params={"how": {"pick": ["always", "late", ""]}})
    fused_and_apart("fused_spaces.py:mixed", config, tmp_path, 6, all_fused=False)


@pytest.mark.parametrize("name", STYLES)
def test_a_style_whose_fusion_is_measured(name: str, tmp_path: Path) -> None:
    """In single precision, with the defaults of a search."""
    config = lightning(name, precision="32-true", epochs=1)
    fused_and_apart("fused_spaces.py:mixed", config, tmp_path, 5, tolerance=1e-2, all_fused=False, fuse="measured")


@pytest.mark.parametrize("name", ["RaisesBefore", "RaisesAfter"])
def test_a_member_that_raises_changes_no_bit_of_the_others(name: str, tmp_path: Path) -> None:
    """Its `how` is another one in both jobs: where it is equal for all, steps run once for all (test_joint.py)."""
    drawn = sample("fused_spaces.py:mixed", lightning(name), 5)
    outcomes = {}
    for how in ("quiet", "raise"):
        config = lightning(name, params={"how": {"pick": ["", "quiet", "raise"]}})
        members = {trial: {**drawn[trial], "module.params.how": how if trial == 1 else ""} for trial in range(5)}
        events = train(make_job("fused_spaces.py:mixed", config, members, fuse="always"), tmp_path / f"all-{how}")
        assert fused_members(events) == {0, 1, 2, 3, 4}
        assert list(evictions(events)) == ([1] if how == "raise" else [])
        outcomes[how] = {trial: outcome(events, tmp_path / f"all-{how}", trial) for trial in (0, 2, 3, 4)}
    for trial, one in outcomes["quiet"].items():
        same(one, outcomes["raise"][trial], 0.0)


def test_want_of_memory_in_a_members_own_step_is_nobodys(tmp_path: Path) -> None:
    """All of them have filled the memory: they go on in smaller units."""
    config = lightning("LacksMemory", params={"how": {"pick": ["", "raise"]}})
    members = {
        trial: {**values, "module.params.how": "raise" if trial == 1 else ""}
        for trial, values in enumerate(sample("fused_spaces.py:mixed", config, 4))
    }
    events = train(make_job("fused_spaces.py:mixed", config, members, fuse="always"), tmp_path)
    assert not evictions(events)
    *_, last = [event for event in events if isinstance(event, Planned)]
    assert max((len(unit.members) for unit in last.units), default=1) <= 2


def test_members_that_end_at_different_epochs(tmp_path: Path) -> None:
    """Their rows are dropped, also where each reads another batch."""
    for name in ("Plain", "Mixup"):
        config = lightning(name, epochs={"pick": [1, 2, 4]})
        fused_and_apart("fused_spaces.py:mixed", config, tmp_path / name, 6)


@pytest.mark.parametrize("name", ["TwoCalls", "OwnParameter", "SometimesNone"])
def test_an_interrupted_job_goes_on_to_the_same_bits(name: str, tmp_path: Path) -> None:
    config = lightning(name)
    spec = make_job("fused_spaces.py:mixed", config, sample("fused_spaces.py:mixed", config, 4), fuse="always")
    assert fused_members(interrupted_as_whole(spec, tmp_path)) == {0, 1, 2, 3}


def test_what_changes_on_the_way_is_noticed(tmp_path: Path) -> None:
    """A layer that is trained only from the second epoch on, weights that are replaced, a backward in the step."""
    for name, why in (("Unfreezes", CHANGES), ("ReplacesWeights", CHANGES), ("BackwardLater", INNER_BACKWARD)):
        events = fused_and_apart("fused_spaces.py:mixed", lightning(name), tmp_path / name, 4)
        alone = [text for event in events if isinstance(event, Planned) for text in event.alone.values()]
        assert why in alone, (name, alone)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("Adversarial", "it runs a backward through the model in its step"),
        ("Autocast", "does not call its model, or parts of it, with one tensor"),
    ],
)
def test_why_a_member_trains_by_itself(name: str, why: str, tmp_path: Path) -> None:
    config = lightning(name)
    members = sample("fused_spaces.py:mixed", config, 3)
    events = train(make_job("fused_spaces.py:mixed", config, members, fuse="always"), tmp_path)
    reasons = {text for event in events if isinstance(event, Planned) for text in event.alone.values()}
    assert any(why in text for text in reasons), reasons


def test_a_state_dict_is_what_it_is_without_fusion(tmp_path: Path) -> None:
    fused_and_apart("fused_spaces.py:mixed", lightning("Teacher"), tmp_path, 3)
    names = [list(weights(tmp_path / where, 1)) for where in ("fused", "apart")]
    assert names[0] == names[1]
    assert all(name.startswith(("model.", "teacher.")) for name in names[0])
