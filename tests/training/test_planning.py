"""What jobs tell of their units, and that a rehearsal plans what the job would."""

from pathlib import Path

import pytest

from nasflow.errors import ConfigError
from nasflow.job.events import Event, Planned
from nasflow.training.dry_run import JobPlan, rehearse
from tests.training.jobs import evaluator, make_job, sample, train

NET = "spaces.py:net"
CONFIG = evaluator(epochs=1, optimizer={"name": "adam", "lr": {"float": [1e-3, 1e-2]}})


def plans(events: list[Event]) -> list[Planned]:
    return [event for event in events if isinstance(event, Planned)]


def units(plan: JobPlan) -> list[tuple[set[int], int, int, int, dict[str, int]]]:
    return [
        (set(unit.members), unit.outline.operations, unit.outline.fused, unit.outline.gathers, unit.outline.kernels)
        for unit in plan.units
    ]


def test_a_job_tells_its_units(tmp_path: Path) -> None:
    spec = make_job(NET, CONFIG, sample(NET, CONFIG, 5), fuse="always")
    [event] = plans(train(spec, tmp_path))
    [unit] = event.units
    assert sorted(unit.members) == [0, 1, 2, 3, 4]
    assert event.alone == {}
    assert 0 < unit.fused < unit.operations
    assert sum(unit.kernels.values()) > 4
    assert unit.seconds is unit.seconds_alone is None, "nothing was measured"


def test_what_was_measured_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    alike = [dict(sample(NET, CONFIG, 1)[0])] * 12
    [event] = plans(train(make_job(NET, CONFIG, alike, fuse="measured"), tmp_path))
    assert event.units, "for a dozen of equal layers of so few numbers there is no doubt"
    for unit in event.units:
        assert unit.seconds is not None
        assert unit.seconds_alone is not None
        assert 0 < unit.seconds < unit.seconds_alone


def test_who_is_not_fused_is_told_with_the_reason(tmp_path: Path) -> None:
    members = sample(NET, CONFIG, 2)
    [event] = plans(train(make_job(NET, CONFIG, members, fuse="never"), tmp_path / "never"))
    assert (event.units, event.alone) == ([], dict.fromkeys([0, 1], "merge.fuse is never"))
    [event] = plans(train(make_job(NET, CONFIG, members[:1], fuse="always"), tmp_path / "single"))
    assert (event.units, event.alone) == ([], {0: "there is no other to fuse it with"})


def test_those_who_come_later_are_told_when_they_come(tmp_path: Path) -> None:
    spec = make_job(NET, CONFIG, sample(NET, CONFIG, 5), fuse="always").model_copy(update={"places": 2})
    told = [sorted(number for unit in event.units for number in unit.members) for event in plans(train(spec, tmp_path))]
    assert told[:2] == [[0, 1], [2, 3]]


def test_a_rehearsal_plans_what_the_job_does(tmp_path: Path) -> None:
    spec = make_job(NET, CONFIG, sample(NET, CONFIG, 5), fuse="always")
    [event] = plans(train(spec, tmp_path))
    plan = rehearse(spec)
    assert units(plan) == [
        (set(unit.members), unit.operations, unit.fused, unit.gathers, unit.kernels) for unit in event.units
    ]
    assert plan.reasons == event.alone
    assert plan.batch == (16, 6)
    assert all(price.seconds > 0 for unit in plan.units for price in unit.prices[1:])


def test_a_rehearsal_plans_what_the_job_does_on_each_of_its_devices(tmp_path: Path) -> None:
    spec = make_job(NET, CONFIG, sample(NET, CONFIG, 6), fuse="always")
    members = [member.model_copy(update={"device": member.trial % 2}) for member in spec.members]
    spec = spec.model_copy(update={"members": members})
    plan = rehearse(spec)
    assert plan.devices == 2
    assert {unit.device: {member % 2 for member in unit.members} for unit in plan.units} == {0: {0}, 1: {1}}
    assert units(plan) == [
        (set(unit.members), unit.operations, unit.fused, unit.gathers, unit.kernels)
        for event in plans(train(spec, tmp_path))
        for unit in event.units
    ]


def test_a_rehearsal_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    rehearse(make_job(NET, CONFIG, sample(NET, CONFIG, 3), fuse="always"))
    assert [path.name for path in tmp_path.iterdir()] == ["cache"]
    assert [path.name[:13] for path in (tmp_path / "cache" / "nasflow").iterdir()] == ["kernel-costs-"]


def test_a_trial_that_fails_at_once_is_named() -> None:
    config = evaluator()
    good = {"after": 1, "training": True, "width": 4, "depth": 1, "dropout": 0.1, "fault": "none"}
    spec = make_job("spaces.py:faulty", config, [good, {**good, "fault": "build"}, {**good, "fault": "build exit"}])
    plan = rehearse(spec)
    assert plan.reasons.keys() == {0}
    assert {trial: text.partition("\n")[0] for trial, text in plan.failed.items()} == {
        1: "RuntimeError: this one can't be built",
        2: "SystemExit: not today",
    }


def test_data_without_a_batch_is_refused() -> None:
    config = evaluator(data={"target": "no_data.py:no_batches"})
    with pytest.raises(ConfigError, match=r"evaluator\.data: no_data.py:no_batches gives no batch to train on"):
        rehearse(make_job(NET, config, sample(NET, config, 2), fuse="always"))
