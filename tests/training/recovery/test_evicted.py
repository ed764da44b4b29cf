"""A bad member hurts only itself: it is evicted with its reason, and the others' results are bit-identical."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest

from nasflow.checkpoint.store import CheckpointStore
from nasflow.config.limits import LimitsConfig
from nasflow.job.events import Alert, Ended, Epoch, Event, Evicted, Final, Planned, Started
from nasflow.job.spec import stop_mark, trial_dir
from tests.training.jobs import Outcome, evaluator, evictions, make_job, outcome, train

CONFIG = evaluator(epochs=3, optimizer={"lr": {"pick": [0.01, 1e8]}}, gradient_clip_val={"pick": [1.0, 1e30]})
GOOD = {"optimizer.lr": 0.01, "gradient_clip_val": 1.0, "fault": "none", "after": 1, "training": True}
NETS: list[dict[str, Any]] = [
    {"width": 8, "depth": 2, "dropout": 0.3, "still": False},
    {"width": 4, "depth": 1, "dropout": 0.1, "still": True},
    {"width": 12, "depth": 2, "dropout": 0.1, "still": False},
]
HEALTHY = {trial: {**GOOD, **net} for trial, net in zip((1, 4, 5), NETS, strict=True)}
SPACE = "spaces.py:frozen"

Outcomes = dict[int, Outcome]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    root = tmp_path_factory.mktemp("undisturbed")
    events = train(make_job(SPACE, CONFIG, HEALTHY), root)
    return {trial: outcome(events, root, trial) for trial in HEALTHY}


Run = Callable[..., list[Event]]


@pytest.fixture
def run(undisturbed: Outcomes, tmp_path: Path) -> Run:
    """Train bad members among the healthy ones, which must not notice; the events."""

    def train_with(*bad: dict[str, Any]) -> list[Event]:
        places = dict(zip((0, 3, 9), bad, strict=False))
        members = {trial: {**GOOD, **NETS[0], **places[trial]} for trial in places}
        order = [0, 1, 3, 4, 5, 9]
        everyone = {**HEALTHY, **members}
        events = train(make_job(SPACE, CONFIG, {n: everyone[n] for n in order if n in everyone}), tmp_path)
        for trial in HEALTHY:
            assert outcome(events, tmp_path, trial) == undisturbed[trial]
        assert isinstance(events[0], Started)
        assert [type(event) for event in events].count(Ended) == 1
        assert events[-1] == Ended(at=events[-1].at)
        assert evictions(events).keys() == places.keys()
        return events

    return train_with


def told_of(trial: int, events: list[Event]) -> list[Event]:
    return [event for event in events if isinstance(event, Epoch | Final | Evicted) and event.trial == trial]


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(("after", "epoch"), [(1, 1), (6, 2)])
def test_raising(training: bool, after: int, epoch: int, run: Run) -> None:
    """In training or validation, in the first batch or in a later epoch (4 training and 2 validation batches each)."""
    if not training:
        epoch = 3 if after == 6 else 1
    events = run({"fault": "raise", "after": after, "training": training})
    *epochs, evicted = told_of(0, events)
    assert [event.epoch for event in epochs if isinstance(event, Epoch)] == list(range(1, epoch))
    assert isinstance(evicted, Evicted)
    assert evicted.epoch == epoch
    first, *trace = evicted.error.splitlines()
    assert first == "ValueError: a layer gave up"
    assert trace[-1] == first
    assert any("raise ValueError" in line for line in trace)


@pytest.mark.parametrize("training", [True, False])
def test_leaving_the_process(training: bool, run: Run) -> None:
    [evicted] = told_of(0, run({"fault": "exit", "training": training}))
    assert isinstance(evicted, Evicted)
    assert (evicted.epoch, evicted.error.splitlines()[0]) == (1, "SystemExit: 3")


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ({"fault": "nan", "after": 6}, "TrialError: training loss is nan in epoch 2, step 1"),
        ({"fault": "nan", "training": False}, "TrialError: val_loss is nan after epoch 1"),
        ({"optimizer.lr": 1e8, "gradient_clip_val": 1e30, "depth": 2}, "TrialError: "),
    ],
    ids=["training loss", "validation loss", "diverging"],
)
def test_not_finite(bad: dict[str, Any], said: str, run: Run) -> None:
    *_, evicted = told_of(0, run(bad))
    assert isinstance(evicted, Evicted)
    assert evicted.error.startswith(said)
    assert "is nan" in evicted.error or "is inf" in evicted.error or "not finite" in evicted.error


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ({"fault": "build"}, "RuntimeError: this one can't be built"),
        ({"fault": "build exit"}, "SystemExit: not today"),
        ({"width": 5}, "SpaceError: label 'width': 5 does not fit"),
        ({"what": 1}, "SpaceError: "),
    ],
    ids=str,
)
def test_what_can_not_be_built(bad: dict[str, Any], said: str, run: Run) -> None:
    [evicted] = told_of(0, run(bad))
    assert isinstance(evicted, Evicted)
    assert evicted.epoch == 0
    assert evicted.error.startswith(said)


def test_several_at_once(run: Run) -> None:
    events = run({"fault": "raise"}, {"fault": "build"}, {"fault": "nan", "after": 6})
    errors = {trial: event.error.splitlines()[0] for trial, event in evictions(events).items()}
    assert errors == {
        0: "ValueError: a layer gave up",
        3: "RuntimeError: this one can't be built",
        9: "TrialError: training loss is nan in epoch 2, step 1",
    }
    assert [event.epoch for event in told_of(9, events)] == [1, 2]


def test_an_evicted_member_keeps_the_checkpoint_of_its_last_epoch(run: Run, tmp_path: Path) -> None:
    run({"fault": "raise", "after": 6})
    assert CheckpointStore(trial_dir(tmp_path, 0)).epochs() == [0, 1]


@pytest.mark.parametrize(("after", "epochs"), [(0, []), (6, [1])], ids=["from the start", "later"])
@pytest.mark.parametrize("place", [0, 2])
def test_a_state_that_can_not_be_saved(after: int, epochs: list[int], place: int, tmp_path: Path) -> None:
    """It is not in the file that the others are saved in."""
    config = evaluator(epochs=3)
    nets = [{"width": width, "depth": 1, "dropout": 0.3, "after": 1000} for width in (4, 8)]
    healthy = dict(zip((1, 3), nets, strict=True))
    alone = train(make_job("spaces.py:secretive", config, healthy), tmp_path / "alone")
    expected = {trial: outcome(alone, tmp_path / "alone", trial) for trial in healthy}
    members = dict(sorted({**healthy, place: {**nets[0], "after": after}}.items()))
    events = train(make_job("spaces.py:secretive", config, members), tmp_path)
    assert {trial: outcome(events, tmp_path, trial) for trial in healthy} == expected
    *told, evicted = told_of(place, events)
    assert [event.epoch for event in told if isinstance(event, Epoch)] == epochs
    assert isinstance(evicted, Evicted)
    where = "'/module/model.0._extra_state/seen' is a object, which a checkpoint can't hold"
    assert evicted.error.startswith(f"CheckpointError: state at {where}")
    assert CheckpointStore(trial_dir(tmp_path, place)).epochs() == [epoch for epoch in (0, 1) if after]
    assert {path.stat().st_nlink for path in trial_dir(tmp_path, 1).iterdir()} == {2}


@pytest.mark.parametrize("fault", ["raise", "build", "exit", "nan"])
def test_a_job_whose_every_member_is_evicted_ends(fault: str, tmp_path: Path) -> None:
    bad = {**GOOD, **NETS[0], "fault": fault}
    events = train(make_job(SPACE, CONFIG, [bad, bad]), tmp_path)
    assert [type(event) for event in events if not isinstance(event, Planned)] == [Started, Evicted, Evicted, Ended]
    assert isinstance(events[-1], Ended)
    assert events[-1].error is None


@pytest.mark.parametrize("fuse", ["never", "always"])
def test_a_trial_that_is_to_stop_ends_after_its_epoch(fuse: Literal["never", "always"], tmp_path: Path) -> None:
    members = {trial: {**GOOD, **NETS[0]} for trial in (1, 4, 5)}
    whole = train(make_job(SPACE, CONFIG, members, fuse=fuse), tmp_path / "whole")
    stop_mark(tmp_path / "stopped", 4).parent.mkdir(parents=True)
    stop_mark(tmp_path / "stopped", 4).touch()
    events = train(make_job(SPACE, CONFIG, members, fuse=fuse), tmp_path / "stopped")
    for trial in (1, 5):
        assert outcome(events, tmp_path / "stopped", trial) == outcome(whole, tmp_path / "whole", trial)
    (final,) = (event for event in events if isinstance(event, Final) and event.trial == 4)
    (first, *_) = (event for event in whole if isinstance(event, Epoch) and event.trial == 4)
    assert (final.epochs, final.stopped_early, final.pruned) == (1, True, False)
    assert final.metrics == {**first.metrics, "parameters": final.metrics["parameters"]}
    assert [event.text for event in events if isinstance(event, Alert)] == [
        "trial 4 stops after epoch 1: that was asked for"
    ]
    assert not stop_mark(tmp_path / "stopped", 4).exists()
    again = train(make_job(SPACE, CONFIG, members, fuse=fuse), tmp_path / "stopped")
    assert [event.epochs for event in again if isinstance(event, Final) and event.trial == 4] == [1]


def test_a_trial_that_trains_for_longer_than_its_limit_stops(tmp_path: Path) -> None:
    spec = make_job(SPACE, CONFIG, {1: {**GOOD, **NETS[0]}, 4: {**GOOD, **NETS[1]}})
    events = train(spec.model_copy(update={"limits": LimitsConfig(trial=1e-9)}), tmp_path)
    finals = {event.trial: (event.epochs, event.stopped_early) for event in events if isinstance(event, Final)}
    assert finals == {1: (1, True), 4: (1, True)}
    assert {event.text for event in events if isinstance(event, Alert)} == {
        f"trial {trial} stops after epoch 1: limits.trial is 1e-09s" for trial in (1, 4)
    }
