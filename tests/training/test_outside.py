"""What models have in common that is made outside of `build(pick)`: refused if it trains, shared if it is frozen."""

from pathlib import Path
from typing import Any

import pytest
import torch

from nasflow.checkpoint.store import CheckpointStore
from nasflow.config.search import SearchConfig, Target
from nasflow.errors import SharedLayerError
from nasflow.evaluator.candidate import candidate_space
from nasflow.evaluator.check import check_search
from nasflow.job.events import Ended, Epoch, Event, Started, parse_event
from nasflow.job.spec import trial_dir
from nasflow.space.shared_layers import Owners
from nasflow.training import job_driver
from nasflow.training.runner import run_job_file
from nasflow.training.training_job import TrainingJob
from tests.training.fused_jobs import same
from tests.training.interrupted import interrupted
from tests.training.jobs import BLOBS, HERE, evaluator, evictions, make_job, outcome, train, weights
from tests.training.models.outside_spaces import FINE, REFUSED

OUTSIDE = "outside_spaces.py:outside"
TRUNK = "outside_spaces.py:trunk"


def of_kind(kind: str, *trials: int) -> dict[int, dict[str, Any]]:
    """Members by trial number, of different widths."""
    return {trial: {"kind": kind, "width": 4 + 4 * (trial % 2)} for trial in trials}


@pytest.fixture(autouse=True)
def fresh_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """No job ran before in this one."""
    monkeypatch.setattr(job_driver, "_OWNERS", Owners())


@pytest.mark.parametrize("kind", REFUSED)
def test_building_twice_finds_it(kind: str) -> None:
    space = candidate_space(Target(target=OUTSIDE), evaluator(), HERE)
    first = space.build({"kind": kind, "width": 4})
    with pytest.raises(SharedLayerError, match=r"outside_spaces.py:outside makes '0\.[a-z._]+' \(\w+\) outside"):
        space.validate({"kind": kind, "width": 8})
    space.validate({"kind": "own", "width": 8})
    del first


@pytest.mark.parametrize("kind", FINE)
def test_building_twice_passes_what_training_leaves_alone(kind: str) -> None:
    space = candidate_space(Target(target=OUTSIDE), evaluator(), HERE)
    for width in (4, 8, 4):
        space.build({"kind": kind, "width": width})
        space.validate({"kind": kind, "width": width})


def test_thousands_of_builds_are_told_apart() -> None:
    """Their memory is used again and again."""
    space = candidate_space(Target(target=OUTSIDE), evaluator(), HERE)
    for _ in range(400):
        space.build({"kind": "own", "width": 4})


@pytest.mark.parametrize("kind", [*REFUSED, "whole"])
def test_a_search_is_refused_before_it_begins(kind: str) -> None:
    space: dict[str, Any] = {"target": OUTSIDE, "params": {"kinds": [kind]}}
    if kind == "whole":
        space = {"target": "outside_spaces.py:whole"}
    with pytest.raises(SharedLayerError, match=r"makes '(0\.[a-z._]+|weight)' \(\w+\) outside of build"):
        check_search(_search(space))


def test_a_search_of_what_training_leaves_alone_may_begin() -> None:
    for kind in FINE:
        check_search(_search({"target": OUTSIDE, "params": {"kinds": [kind]}}))


def _search(space: dict[str, Any]) -> SearchConfig:
    values = {"name": "outside", "space": space, "evaluator": {"kind": "classification", "data": BLOBS}}
    return SearchConfig.model_validate({**values, "base_dir": HERE})


@pytest.mark.parametrize(
    ("kind", "precision"), [*((kind, "32-true") for kind in REFUSED), ("layer", "64-true"), ("view", "64-true")]
)
def test_a_job_trains_neither_of_two(kind: str, precision: str, tmp_path: Path) -> None:
    spec = make_job(OUTSIDE, evaluator(precision=precision), of_kind(kind, 3, 5), fuse="always")
    (tmp_path / "jobs/job").mkdir(parents=True)
    file = tmp_path / "jobs/job/job.json"
    file.write_text(spec.model_dump_json())
    assert run_job_file(file) == 1
    events = [parse_event(line) for line in (tmp_path / "jobs/job/events.jsonl").read_text().splitlines()]
    started, ended = events
    assert isinstance(started, Started) and isinstance(ended, Ended)
    assert ended.refused and not ended.infrastructure
    assert ended.error is not None and "\n" not in ended.error
    assert f"trials 3 and 5 of {OUTSIDE} would train the same 'model.0." in ended.error


@pytest.mark.parametrize("kind", FINE)
def test_a_job_trains_both_as_if_alone(kind: str, tmp_path: Path) -> None:
    config, members = evaluator(precision="64-true"), of_kind(kind, 3, 5)
    events = train(make_job(OUTSIDE, config, members, fuse="always"), tmp_path / "both")
    assert not evictions(events)
    for trial in members:
        alone = train(make_job(OUTSIDE, config, {trial: members[trial]}), tmp_path / "alone")
        same(outcome(events, tmp_path / "both", trial), outcome(alone, tmp_path / "alone", trial))


def test_an_evaluators_layer_is_found_by_the_job(tmp_path: Path) -> None:
    config = evaluator(kind="lightning", module={"target": "outside_spaces.py:WithLoss"})
    with pytest.raises(
        SharedLayerError, match=r"trials 0 and 1 of .* would train the same 'loss_scale.weight' \(Linear\)"
    ):
        train(make_job(OUTSIDE, config, of_kind("own", 0, 1)), tmp_path)


def test_a_later_job_of_the_same_process(tmp_path: Path) -> None:
    """The same trial may try again, another may not."""
    config = evaluator(kind="lightning", module={"target": "outside_spaces.py:WithLoss"}, epochs=2)
    one = make_job(OUTSIDE, config, of_kind("own", 0))
    events = interrupted(one, tmp_path, trial=0, epoch=1)
    events += train(one, tmp_path)
    assert [event.epoch for event in events if isinstance(event, Epoch) and not event.replayed] == [1, 2]
    told: list[Event] = []
    with pytest.raises(SharedLayerError, match="trials 0 and 1 of"):
        TrainingJob(make_job(OUTSIDE, config, of_kind("own", 1)), tmp_path, told.append).run()
    assert [type(event) for event in told] == [Started]
    with pytest.raises(SharedLayerError, match="trial 0 of another search in this process and trial 0 of"):
        train(one, tmp_path / "other")


@pytest.mark.parametrize("precision", ["32-true", "64-true"])
def test_a_frozen_trunk_is_computed_once_for_all(
    precision: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    noted = tmp_path / "noted"
    monkeypatch.setenv("SHARED_LAYERS", str(noted))
    config = evaluator(precision=precision, epochs=3)
    members = {trial: {"width": 4 + 4 * (trial % 2)} for trial in range(4)}
    merged = make_job(TRUNK, config, members, fuse="always", passes=["outside_spaces.py:note_shared"])
    tolerance = 1e-9 if precision == "64-true" else 1e-4
    train(merged, tmp_path / "once")
    interrupted(merged, tmp_path / "twice", trial=3, epoch=1)
    events = train(merged, tmp_path / "twice")
    plans = set(noted.read_text().splitlines())
    assert plans == {"4: Linear BatchNorm1d Tanh"}, "before and after the interruption"
    assert not evictions(events)
    for trial, values in members.items():
        alone = train(make_job(TRUNK, config, {trial: values}), tmp_path / "alone")
        expected = outcome(alone, tmp_path / "alone", trial)
        same(outcome(events, tmp_path / "twice", trial), expected, tolerance)


def test_a_trunk_that_is_unfrozen_is_each_members_own(tmp_path: Path) -> None:
    config = evaluator(kind="lightning", module={"target": "outside_spaces.py:Unfreezing"}, epochs=3)
    members = {trial: {"width": 4 + 4 * (trial % 2)} for trial in range(3)}
    events = train(make_job(TRUNK, config, members), tmp_path / "together")
    assert not evictions(events)
    for trial, values in members.items():
        alone = train(make_job(TRUNK, config, {trial: values}), tmp_path / "alone")
        assert outcome(events, tmp_path / "together", trial) == outcome(alone, tmp_path / "alone", trial)


def test_frozen_values_of_a_checkpoint_reach_only_their_member(tmp_path: Path) -> None:
    """Checkpoints that hold other frozen values than the space makes by now."""
    config = evaluator(precision="64-true", epochs=3)
    members = {trial: {"width": 4} for trial in range(2)}
    spec = make_job(TRUNK, config, members, fuse="always")
    interrupted(spec, tmp_path, trial=1, epoch=1)
    before = weights(tmp_path, 0)["model.0.0.weight"]
    store = CheckpointStore(trial_dir(tmp_path, 0))
    state = store.load_newest()
    assert state is not None
    state["module"]["model.0.0.weight"] = 2 * before
    store.save(state["epoch"], state)
    events = train(spec, tmp_path)
    assert not evictions(events)
    assert torch.equal(weights(tmp_path, 0)["model.0.0.weight"], 2 * before)
    assert torch.equal(weights(tmp_path, 1)["model.0.0.weight"], before)
