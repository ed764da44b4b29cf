"""A trial with several seeds: each member is as a trial of its own, and the trial is their mean."""

import statistics
from pathlib import Path
from typing import Any

import pytest
import torch

from nasflow.checkpoint.carried import carry_over
from nasflow.checkpoint.store import CheckpointStore
from nasflow.config.evaluator.training import TrainingConfig
from nasflow.config.limits import LimitsConfig
from nasflow.config.search import HalvingPrunerConfig, Objective
from nasflow.job.events import Alert, Epoch, Event, Final, Planned, Started
from nasflow.job.spec import JobSpec, PeerSpec, stop_mark, trial_dir
from nasflow.training.member.rng import RngStream
from nasflow.training.repeated import first_metrics, seeded
from nasflow.training.training_job import TrainingJob
from tests.training.interrupted import halves, interrupted, preempted
from tests.training.jobs import evaluator, evictions, make_job, outcome, sample, train
from tests.training.models.repeated_spaces import luck

NET = "spaces.py:net"
SETTINGS: dict[str, Any] = {
    "data": {"target": "spaces.py:augmented"},
    "epochs": 5,
    "precision": "64-true",
    "optimizer": {"name": "adam", "lr": {"float": [0.01, 0.1]}},
    "early_stopping": {"patience": 1, "min_delta": 0.03},
}
LOSS = [Objective(metric="val_loss", direction="minimize")]


def job(count: int = 3, fuse: Any = "never", space: str = NET, **values: Any) -> JobSpec:
    config = evaluator(**SETTINGS | {"repeats": 3} | values)
    return make_job(space, config, sample(space, config, count), fuse=fuse)


def apart(spec: JobSpec) -> JobSpec:
    """The same members, each as a trial of its own."""
    assert isinstance(spec.evaluator, TrainingConfig)
    repeats = spec.evaluator.repeats
    members = [
        seeded(member, repeat).model_copy(update={"trial": member.trial * repeats + repeat})
        for member in spec.members
        for repeat in range(repeats)
    ]
    alone = spec.evaluator.model_copy(update={"repeats": 1})
    return spec.model_copy(update={"evaluator": alone, "members": members})


def state(root: Path, trial: int) -> dict[str, Any]:
    found = CheckpointStore(trial_dir(root, trial)).load_newest()
    assert found is not None
    return found


def finals(events: list[Event]) -> dict[int, Final]:
    return {event.trial: event for event in events if isinstance(event, Final)}


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> tuple[JobSpec, Path, list[Event]]:
    spec, root = job(), tmp_path_factory.mktemp("together")
    return spec, root, train(spec, root)


def test_members_are_as_trials_of_their_own(together: tuple[JobSpec, Path, list[Event]], tmp_path: Path) -> None:
    """Also those that stop early, before others of their trial."""
    spec, root, events = together
    alone = finals(train(apart(spec), tmp_path))
    lengths = set()
    for member in spec.members:
        saved, parts = state(root, member.trial), []
        for repeat in range(3):
            part = {**saved["repeats"][repeat]}
            part.setdefault("module", saved["module"])
            other = state(tmp_path, member.trial * 3 + repeat)
            assert part["history"] == other["history"]
            assert [part["epoch"], part["stopped_early"]] == [other["epoch"], other["stopped_early"]]
            assert part["module"].keys() == other["module"].keys()
            assert all(torch.equal(tensor, other["module"][name]) for name, tensor in part["module"].items())
            parts.append(other["history"])
        lengths.add(tuple(map(len, parts)))
        own_first = first_metrics(trial_dir(root, member.trial))
        assert own_first == {**parts[0][-1], "parameters": finals(events)[member.trial].metrics["parameters"]}
        final, longest = finals(events)[member.trial], max(map(len, parts))
        own = [alone[member.trial * 3 + repeat].metrics["val_loss"] for repeat in range(3)]
        assert final.epochs == longest
        assert final.metrics["val_loss"] == pytest.approx(statistics.fmean(own), rel=1e-12)
        assert final.metrics["val_loss_std"] == pytest.approx(statistics.stdev(own), rel=1e-9)
        assert final.metrics["parameters"] == alone[member.trial * 3].metrics["parameters"]
        assert "parameters_std" not in final.metrics
        told = [event.metrics for event in events if isinstance(event, Epoch) and event.trial == member.trial]
        assert len(told) == longest
        for epoch, metrics in enumerate(told):
            values = [history[min(epoch, len(history) - 1)]["val_loss"] for history in parts]
            assert metrics["val_loss"] == pytest.approx(statistics.fmean(values), rel=1e-12)
    assert any(len(set(each)) > 1 for each in lengths), "some stop before others of their trial"


def test_fused_as_alone(tmp_path: Path) -> None:
    fused, alone = job(fuse="always", early_stopping=None), job(early_stopping=None)
    events = train(fused, tmp_path / "fused")
    train(alone, tmp_path / "alone")
    assert not evictions(events)
    [planned] = [event for event in events if isinstance(event, Planned)]
    assert {trial for unit in planned.units for trial in unit.members} == {0, 1, 2}
    for trial in range(3):
        one, other = state(tmp_path / "fused", trial), state(tmp_path / "alone", trial)
        for parts in zip(one["repeats"], other["repeats"], strict=True):
            assert [len(part["history"]) for part in parts] == [5, 5]
            for a, b in zip(*(part["history"] for part in parts), strict=True):
                assert a == pytest.approx(b, abs=1e-9)


@pytest.mark.parametrize(("trial", "epoch"), [(0, 1), (2, 3)])
def test_interrupted(trial: int, epoch: int, together: tuple[JobSpec, Path, list[Event]], tmp_path: Path) -> None:
    spec, root, events = together
    interrupted(spec, tmp_path, trial, epoch)
    again = train(spec, tmp_path)
    assert next(event for event in again if isinstance(event, Started)).resumed[trial] >= epoch
    for number in range(3):
        assert outcome(again, tmp_path, number) == outcome(events, root, number)


def test_preempted_within_an_epoch(tmp_path: Path) -> None:
    data = {"target": "spaces.py:taken_back", "params": {"marker": str(tmp_path / "marker"), "passed": 2}}
    spec = job(data=data)
    spec = spec.model_copy(update={"checkpoint": spec.checkpoint.model_copy(update={"on_preempt": True})})
    preempted(spec, tmp_path / "twice")
    assert halves(tmp_path / "twice")
    again, whole = train(spec, tmp_path / "twice"), train(spec, tmp_path / "once")
    for trial in range(3):
        assert outcome(again, tmp_path / "twice", trial) == outcome(whole, tmp_path / "once", trial)


@pytest.mark.parametrize("when", ["build", "train"])
def test_one_member_fails(when: str, tmp_path: Path) -> None:
    """Its trial fails, once, with all its members; the other trial is as without it."""
    space = "repeated_spaces.py:unlucky"
    spec = job(2, space=space, early_stopping=None, epochs=3)
    lucks = []
    for repeat in range(3):
        with RngStream(seeded(spec.members[0], repeat).seed):
            lucks.append(luck())
    most, worst = sorted(lucks)[1:]
    members = [
        member.model_copy(update={"architecture": {**member.architecture, "most": limit, "when": when}})
        for member, limit in zip(spec.members, ((most + worst) / 2, 1.0), strict=True)
    ]
    events = train(spec.model_copy(update={"members": members}), tmp_path / "both")
    evicted = evictions(events)
    assert evicted.keys() == {0}
    assert evicted[0].error.splitlines()[0] == f"repeat {lucks.index(worst) + 1} of 3: RuntimeError: out of luck"
    assert evicted[0].epoch == (0 if when == "build" else 2)
    trained = [event.epoch for event in events if isinstance(event, Epoch) and event.trial == 0]
    assert trained == ([] if when == "build" else [1])
    alone = train(spec.model_copy(update={"members": members[1:]}), tmp_path / "alone")
    assert outcome(events, tmp_path / "both", 1) == outcome(alone, tmp_path / "alone", 1)


def test_pruned_by_the_mean(tmp_path: Path) -> None:
    """A trial's members stop together; one that was interrupted, or has lost another, decides the same."""
    spec = job(6, early_stopping=None, epochs=4)
    spec = spec.model_copy(update={"pruner": HalvingPrunerConfig(reduction_factor=2), "objectives": LOSS})
    events = train(spec, tmp_path / "once")
    ended = finals(events)
    first = {
        event.trial: event.metrics["val_loss"] for event in events if isinstance(event, Epoch) and event.epoch == 1
    }
    went_on = {trial for trial, final in ended.items() if final.epochs > 1}
    assert went_on == set(sorted(first, key=lambda trial: first[trial] or 0)[:3])
    for trial, final in ended.items():
        parts = state(tmp_path / "once", trial)["repeats"]
        assert {(len(part["history"]), part["pruned"]) for part in parts} == {(final.epochs, final.pruned)}
        assert final.pruned is (final.epochs < 4)
    interrupted(spec, tmp_path / "twice", 3, 1)
    again = train(spec, tmp_path / "twice")
    for trial in range(6):
        assert outcome(again, tmp_path / "twice", trial) == outcome(events, tmp_path / "once", trial)
    lost = next(trial for trial in ended if trial not in went_on)
    history = [event.metrics for event in events if isinstance(event, Epoch) and event.trial == lost]
    gone = spec.members[lost]
    peer = PeerSpec(**gone.model_dump(), history=history, parameters=1, failed=False)
    others = [member for member in spec.members if member is not gone]
    rest = train(spec.model_copy(update={"members": others, "peers": [peer]}), tmp_path / "rest")
    assert {trial: final.epochs for trial, final in finals(rest).items()} == {
        trial: final.epochs for trial, final in ended.items() if trial != lost
    }


def test_spread_as_objective(tmp_path: Path) -> None:
    spec = job(3, early_stopping=None, epochs=2)
    spread = [Objective(metric="val_loss_std", direction="minimize")]
    events = train(spec.model_copy(update={"pruner": HalvingPrunerConfig(), "objectives": spread}), tmp_path)
    assert not evictions(events)
    [best] = [trial for trial, final in finals(events).items() if not final.pruned]
    first = {e.trial: e.metrics["val_loss_std"] for e in events if isinstance(e, Epoch) and e.epoch == 1}
    assert best == min(first, key=lambda trial: first[trial] or 0)


def test_trials_take_places_as_a_whole(together: tuple[JobSpec, Path, list[Event]], tmp_path: Path) -> None:
    spec, root, events = together
    one = train(spec.model_copy(update={"places": 1}), tmp_path)
    assert next(event for event in one if isinstance(event, Started)).waiting == [1, 2]
    order = [event.trial for event in one if isinstance(event, Epoch)]
    assert order == sorted(order)
    for trial in range(3):
        assert outcome(one, tmp_path, trial) == outcome(events, root, trial)


def test_goes_on_where_another_ended(tmp_path: Path) -> None:
    spec = job(1, stop_after={"pick": [2, 5]})

    def until(trial: int, epochs: int) -> list[Event]:
        architecture = {**spec.members[0].architecture, "stop_after": epochs}
        member = spec.members[0].model_copy(update={"trial": trial, "architecture": architecture})
        return train(spec.model_copy(update={"members": [member]}), tmp_path)

    whole = until(0, 5)
    until(1, 2)
    carry_over(trial_dir(tmp_path, 1), trial_dir(tmp_path, 2), 0)
    events = until(2, 5)
    assert next(event.epoch for event in events if isinstance(event, Epoch) and not event.replayed) == 3
    assert outcome(events, tmp_path, 2) == outcome(whole, tmp_path, 0)


@pytest.mark.parametrize("how", ["mark", "limit"])
def test_stops_as_a_whole(how: str, tmp_path: Path) -> None:
    """Someone asked for it, or its members have trained for too long together."""
    spec = job(1, early_stopping=None)
    if how == "limit":
        spec = spec.model_copy(update={"limits": LimitsConfig(trial=1e-6)})
    events: list[Event] = []

    def tell(event: Event) -> None:
        events.append(event)
        if how == "mark" and isinstance(event, Started):
            stop_mark(tmp_path, 0).parent.mkdir(parents=True, exist_ok=True)
            stop_mark(tmp_path, 0).touch()

    TrainingJob(spec, tmp_path, tell).run()
    assert [event.text.split(":")[0] for event in events if isinstance(event, Alert)] == ["trial 0 stops after epoch 1"]
    assert finals(events)[0].epochs == 1
    assert not stop_mark(tmp_path, 0).exists()
