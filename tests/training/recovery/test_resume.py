"""A job goes on from any saved epoch to the same end, and repeats nothing that was told."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from nasflow.checkpoint.store import CheckpointStore
from nasflow.config.search import EvaluatorConfig
from nasflow.errors import InfrastructureError
from nasflow.job.events import Ended, Epoch, Event, Final, Started
from nasflow.job.spec import JobSpec, trial_dir
from tests.training.interrupted import interrupted
from tests.training.jobs import Outcome, evaluator, evictions, make_job, outcome, sample, train
from tests.training.models.lightning_modules import CONFIGURED

NET = "spaces.py:net"
OPTIMIZERS = ["sgd", "adam", "adamw", "rmsprop", "adagrad", "nadam", "radam", "adamax"]
CONFIG = evaluator(
    data={"target": "spaces.py:augmented"},
    epochs={"pick": [3, 5]},
    precision="64-true",
    gradient_clip_val=0.5,
    optimizer={"name": "sgd", "momentum": 0.9, "nesterov": True, "lr": {"float": [0.01, 0.1]}},
    schedule={"name": "cosine", "warmup_epochs": 2},
    early_stopping={"patience": 2, "min_delta": 0.3},
)


def told(events: list[Event], replayed: bool) -> list[tuple[int, int]]:
    return [(e.trial, e.epoch) for e in events if isinstance(e, Epoch) and e.replayed is replayed]


def outcomes(spec: JobSpec, events: list[Event], root: Path) -> dict[int, Outcome]:
    return {member.trial: outcome(events, root, member.trial) for member in spec.members}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[JobSpec, Path, list[Event]]:
    """A job that ran to its end and kept every checkpoint."""
    spec = make_job(NET, CONFIG, sample(NET, CONFIG, 3), keep=99)
    root = tmp_path_factory.mktemp("finished")
    events = train(spec, root)
    assert {(e.epochs, e.stopped_early) for e in events if isinstance(e, Final)} == {(3, False), (3, True), (5, False)}
    return spec, root, events


Finished = tuple[JobSpec, Path, list[Event]]


@pytest.mark.parametrize("epochs", [(0, 0, 0), (1, 1, 1), (2, 2, 2), (4, 0, 1), (2, 3, 2), (0, 99, 99)], ids=str)
def test_from_any_saved_epoch(epochs: tuple[int, ...], finished: Finished, tmp_path: Path) -> None:
    """Also when the members stand at different ones, and when some have ended."""
    spec, root, events = finished
    shutil.copytree(root, tmp_path / "copy")
    for trial, epoch in enumerate(epochs):
        store = CheckpointStore(trial_dir(tmp_path / "copy", trial))
        for later in [saved for saved in store.epochs() if saved > epoch]:
            store.path(later).unlink()
    again = train(spec, tmp_path / "copy")
    assert outcomes(spec, again, tmp_path / "copy") == outcomes(spec, events, root)
    lasts = [max(epoch for trial, epoch in told(events, False) if trial == number) for number in range(3)]
    kept = [min(pair) for pair in zip(epochs, lasts, strict=True)]
    assert isinstance(again[0], Started)
    assert again[0].resumed == dict(enumerate(kept))
    assert sorted(told(again, True)) == [(trial, epoch) for trial in range(3) for epoch in range(1, kept[trial] + 1)]
    assert sorted(told(again, True) + told(again, False)) == sorted(told(events, False))


def test_a_finished_job_only_tells_again(finished: Finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec, root, events = finished
    monkeypatch.setattr("nasflow.training.job_driver.load_job_data", None)  # nobody may ask for data
    again = train(spec, root)
    assert not told(again, False)
    assert outcomes(spec, again, root) == outcomes(spec, events, root)

    def bare(event: Event) -> dict[str, Any]:
        return event.model_dump(exclude={"at", "pid", "replayed", "resumed"})

    def of(trial: int, told_events: list[Event]) -> list[dict[str, Any]]:
        return [bare(e) for e in told_events if isinstance(e, Epoch | Final) and e.trial == trial]

    assert [of(trial, again) for trial in range(3)] == [of(trial, events) for trial in range(3)]
    assert isinstance(again[-1], Ended)


def members_resumed(space: str, config: EvaluatorConfig, members: list[dict[str, Any]], tmp_path: Path) -> None:
    """Trained in one go, and interrupted in the second of three epochs."""
    spec = make_job(space, config, members)
    expected = outcomes(spec, train(spec, tmp_path / "once"), tmp_path / "once")
    events = interrupted(spec, tmp_path / "twice", trial=len(members) - 1, epoch=2)
    assert not evictions(events)
    assert len(told(events, False)) == 2 * len(members)
    found = outcomes(spec, train(spec, tmp_path / "twice"), tmp_path / "twice")
    assert [trial for trial in found if found[trial] != expected[trial]] == []


@pytest.mark.parametrize("precision", ["32-true", "64-true"])
def test_with_every_optimizer(precision: str, tmp_path: Path) -> None:
    config = evaluator(epochs=3, precision=precision, optimizer={"name": {"pick": OPTIMIZERS}, "weight_decay": 0.01})
    net = {"width": 8, "depth": 1, "dropout": 0.3}
    members_resumed(NET, config, [{**net, "optimizer.name": name} for name in OPTIMIZERS], tmp_path)


def test_with_every_schedule(tmp_path: Path) -> None:
    module = {"target": "lightning_modules.py:Configured", "params": {"how": {"pick": CONFIGURED}}}
    config = evaluator(kind="lightning", module=module, epochs=3)
    members = [{"classes": 3, "module.params.how": how} for how in CONFIGURED]
    members_resumed("spaces.py:linear", config, members, tmp_path)


def test_with_running_statistics_and_augmented_transfers(tmp_path: Path) -> None:
    config = evaluator(data={"target": "spaces.py:TransferAugmentedImages"}, epochs=3)
    members = [{"width": 4, "kernel": 3, "dropout": 0.3}, {"width": 2, "kernel": 1, "dropout": 0.1}]
    members_resumed("spaces.py:cnn", config, members, tmp_path)


def test_a_trial_begun_alone_goes_on_among_others(finished: Finished, tmp_path: Path) -> None:
    spec, root, events = finished
    alone = spec.model_copy(update={"members": spec.members[2:]})
    interrupted(alone, tmp_path, trial=2, epoch=2)
    merged = train(spec, tmp_path)
    assert isinstance(merged[0], Started)
    assert merged[0].resumed == {0: 0, 1: 0, 2: 2}
    assert outcomes(spec, merged, tmp_path) == outcomes(spec, events, root)


def test_checkpoints_every_second_epoch(finished: Finished, tmp_path: Path) -> None:
    """What was told after the last checkpoint is trained and told again, with the same metrics."""
    spec, root, events = finished
    sparse = make_job(NET, CONFIG, [member.architecture for member in spec.members], every_epochs=2, keep=99)
    first = interrupted(sparse, tmp_path, trial=0, epoch=3)
    assert [CheckpointStore(trial_dir(tmp_path, trial)).epochs()[:2] for trial in range(3)] == [[0, 2]] * 3
    again = train(sparse, tmp_path)
    twice = set(told(first, False)) & set(told(again, False))
    assert twice <= {(trial, 3) for trial in range(3)}
    assert twice
    for events_of_both in zip(*([e for e in told_by if is_of(e, twice)] for told_by in (first, again)), strict=True):
        assert events_of_both[0].metrics == events_of_both[1].metrics
    assert outcomes(sparse, again, tmp_path) == outcomes(spec, events, root)
    for trial in range(3):
        last = len(outcome(again, tmp_path, trial).epochs)
        assert CheckpointStore(trial_dir(tmp_path, trial)).epochs() == sorted({*range(0, last, 2), last})


def test_checkpoints_as_often_as_their_cost_suggests(
    finished: Finished, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Jobs that rarely fail are saved when they begin and end; those that fail all the time after every epoch."""
    spec, root, events = finished
    architectures = [member.architecture for member in spec.members]
    for between_failures, rarely in ((86_400, True), (1e-9, False)):
        caplog.clear()
        folder = tmp_path / str(rarely)
        auto = make_job(NET, CONFIG, architectures, every_epochs="auto", between_failures=between_failures, keep=99)
        assert outcomes(auto, train(auto, folder), folder) == outcomes(spec, events, root)
        assert caplog.text.count("checkpoint.every_epochs auto: a checkpoint of 3 trials costs ") >= 1
        for trial in range(3):
            last = len(outcome(events, root, trial).epochs)
            expected = [0, last] if rarely else list(range(last + 1))
            assert CheckpointStore(trial_dir(folder, trial)).epochs() == expected


def is_of(event: Any, epochs: set[tuple[int, int]]) -> bool:
    return isinstance(event, Epoch) and not event.replayed and (event.trial, event.epoch) in epochs


def test_nothing_is_pickled(finished: Finished) -> None:
    files = [path for path in finished[1].rglob("*") if path.is_file()]
    assert {path.name for path in files} == {f"epoch-{epoch:04d}.safetensors" for epoch in range(6)}
    assert {name.partition(".")[0] for path in files for name in load_file(path)} >= {"float64", "uint8", "int32"}


def test_one_file_for_all_that_are_saved_at_a_time(finished: Finished) -> None:
    """Those that end have one without those that go on, for it stays as long as they do."""
    _, root, events = finished
    lasts = {event.trial: event.epochs for event in events if isinstance(event, Final)}
    assert sorted(lasts.values()) == [3, 3, 5]
    for trial, last in lasts.items():
        store = CheckpointStore(trial_dir(root, trial))
        names = {epoch: store.path(epoch).stat().st_nlink for epoch in store.epochs()}
        assert names == {0: 3, 1: 3, 2: 3, **({3: 2} if last == 3 else {3: 1, 4: 1, 5: 1})}


def test_the_newest_are_kept(finished: Finished, tmp_path: Path) -> None:
    spec, _, _ = finished
    kept = make_job(NET, CONFIG, [spec.members[0].architecture], keep=2)
    last = max(epoch for _, epoch in told(train(kept, tmp_path), False))
    assert CheckpointStore(trial_dir(tmp_path, 0)).epochs() == [last - 1, last]


def test_unreadable_checkpoints(finished: Finished, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The one before is used; a member that has none starts again; and a warning says so."""
    spec, root, events = finished
    interrupted(spec, tmp_path, trial=2, epoch=2)
    harm(tmp_path, trial=0, epochs=[2])
    harm(tmp_path, trial=1, epochs=[0, 1, 2])
    again = train(spec, tmp_path)
    assert isinstance(again[0], Started)
    assert again[0].resumed == {0: 1, 1: 0, 2: 2}
    oldest = trial_dir(tmp_path, 1) / "epoch-0000.safetensors"
    why = f"none of its checkpoints can be read: checkpoint {oldest} can't"
    assert f"trial 1 starts again, because {why}" in caplog.text
    assert f"checkpoint {trial_dir(tmp_path, 0) / 'epoch-0002.safetensors'} can't be read" in caplog.text
    for trial in range(3):
        assert outcome(again, tmp_path, trial) == outcome(events, root, trial)


def harm(root: Path, trial: int, epochs: list[int]) -> None:
    store = CheckpointStore(trial_dir(root, trial))
    for epoch in epochs:
        data = store.path(epoch).read_bytes()
        store.path(epoch).unlink()  # others have the file too
        store.path(epoch).write_bytes(data[:-7])


def test_what_is_left_of_a_checkpoint_is_removed(finished: Finished, tmp_path: Path) -> None:
    spec, root, events = finished
    interrupted(spec, tmp_path, trial=2, epoch=1)
    left = trial_dir(tmp_path, 0) / ".aside-abc"
    left.mkdir()
    shutil.copy(left.with_name("epoch-0001.safetensors"), left / "epoch-0002.safetensors")
    again = train(spec, tmp_path)
    assert not left.exists()
    assert outcomes(spec, again, tmp_path) == outcomes(spec, events, root)


def test_an_evicted_trial_goes_on_from_its_last_epoch(tmp_path: Path) -> None:
    """Its fault comes back with the sixth batch of each process, that is in every second epoch."""
    config = evaluator(epochs=3)
    net = {"width": 8, "depth": 1, "dropout": 0.3, "training": True, "after": 6}
    healthy = make_job("spaces.py:faulty", config, [{**net, "fault": "none"}])
    expected = outcome(train(healthy, tmp_path / "healthy"), tmp_path / "healthy", 0)
    spec = make_job("spaces.py:faulty", config, [{**net, "fault": "raise"}])
    first, second, third = (train(spec, tmp_path / "faulty") for _ in range(3))
    assert [told(events, False) for events in (first, second, third)] == [[(0, 1)], [(0, 2)], [(0, 3)]]
    assert [evicted.epoch for events in (first, second) for evicted in evictions(events).values()] == [2, 3]
    assert outcome(third, tmp_path / "faulty", 0) == expected


def test_a_checkpoint_of_another_architecture_is_refused(tmp_path: Path) -> None:
    config = evaluator()
    net = {"width": 8, "depth": 1, "dropout": 0.3}
    train(make_job(NET, config, [net]), tmp_path)
    (trial_dir(tmp_path, 0) / "epoch-0002.safetensors").unlink()
    evicted = evictions(train(make_job(NET, config, [{**net, "width": 4}]), tmp_path))
    assert "size mismatch" in evicted[0].error


def test_a_job_of_an_earlier_controller_does_no_harm(finished: Finished, tmp_path: Path) -> None:
    """It writes on while another job has replaced it, which is lost in its turn; and it does not start again."""
    spec, root, events = finished
    interrupted(spec, tmp_path, trial=2, epoch=2)
    later, last = (spec.model_copy(update={"generation": generation}) for generation in (1, 2))
    interrupted(later, tmp_path, trial=2, epoch=3)
    for member in spec.members:
        zombie = CheckpointStore(trial_dir(tmp_path, member.trial))
        for epoch in range(3, 6):
            zombie.save(epoch, {"epoch": epoch})
    with pytest.raises(InfrastructureError, match="trial 0 has checkpoints of a later controller's job"):
        train(spec, tmp_path)
    again = train(last, tmp_path)
    assert isinstance(again[0], Started)
    assert max(again[0].resumed.values()) == 3
    assert outcomes(spec, again, tmp_path) == outcomes(spec, events, root)
