"""Jobs that stop some of their members, and jobs with fewer places than members: nobody's result changes by it."""

import gc
import multiprocessing
import os
import signal
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nasflow.checkpoint.store import CheckpointStore
from nasflow.config.search import CustomPrunerConfig, HalvingPrunerConfig, MedianPrunerConfig, Objective
from nasflow.job.events import Ended, Entered, Epoch, Event, EventWriter, Final, Started, parse_event, read_lines
from nasflow.job.spec import JobSpec, PeerSpec, job_dir, trial_dir
from nasflow.training import member_maker as job_module
from nasflow.training.runner import run_job_file
from nasflow.training.training_job import TrainingJob
from tests.training.jobs import Outcome, evaluator, evictions, make_job, outcome, sample, train

NET = "spaces.py:net"
ACCURATE = [Objective(metric="val_accuracy", direction="maximize")]
SMALL = [*ACCURATE, Objective(metric="parameters", direction="minimize")]
TUNED: dict[str, Any] = {
    "data": {"target": "spaces.py:TransferAugmented"},
    "optimizer": {"name": {"pick": ["sgd", "adamw"]}, "lr": {"float": [1e-4, 1e-1], "log": True}},
    "schedule": {"name": "cosine"},
}
CONFIG = evaluator(**TUNED, epochs=4, precision="64-true")
STOPPING = evaluator(**TUNED, epochs={"int": [1, 5]}, early_stopping={"patience": {"pick": [1, 2]}, "min_delta": 0.1})
HALVING = {"pruner": HalvingPrunerConfig(reduction_factor=2), "objectives": ACCURATE}

Outcomes = dict[int, Outcome]
Pruned = tuple[JobSpec, list[Event], Outcomes]


def but(spec: JobSpec, **changes: Any) -> JobSpec:
    """The same job, but for these values."""
    return JobSpec.model_validate(spec.model_dump() | changes)


def outcomes(spec: JobSpec, events: list[Event], root: Path) -> Outcomes:
    return {member.trial: outcome(events, root, member.trial) for member in spec.members}


def finals(events: list[Event]) -> dict[int, Final]:
    return {event.trial: event for event in events if isinstance(event, Final)}


# --- pruned members ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[JobSpec, Path, Outcomes]:
    """Six trials that nobody stops, with all their checkpoints."""
    root = tmp_path_factory.mktemp("whole")
    spec = make_job(NET, CONFIG, sample(NET, CONFIG, 6), keep=99)
    events = train(spec, root)
    return spec, root, outcomes(spec, events, root)


@pytest.mark.parametrize(
    ("changes", "lengths"),
    [
        (HALVING, [1, 1, 1, 2, 2, 4]),
        ({"pruner": HalvingPrunerConfig(), "objectives": SMALL}, [1, 1, 1, 1, 3, 4]),
        ({"pruner": MedianPrunerConfig(), "objectives": ACCURATE}, None),
        ({"pruner": MedianPrunerConfig(warmup_epochs=0, min_others=2), "objectives": SMALL}, None),
    ],
    ids=["halving", "halving, two objectives", "median", "median, two objectives"],
)
def test_survivors_and_stopped_ones_are_as_without_a_pruner(
    changes: dict[str, Any], lengths: list[int] | None, whole: tuple[JobSpec, Path, Outcomes], tmp_path: Path
) -> None:
    spec, root, expected = whole
    events = train(but(spec, **changes), tmp_path)
    ended = finals(events)
    assert ended.keys() == expected.keys()
    epochs = sorted(final.epochs for final in ended.values())
    assert epochs[0] < 4 == epochs[-1]
    assert lengths is None or epochs == lengths
    for trial, final in ended.items():
        stopped = final.epochs < 4
        assert final.stopped_early is final.pruned is stopped
        if not stopped:
            assert outcome(events, tmp_path, trial) == expected[trial]
            continue
        store = CheckpointStore(trial_dir(tmp_path, trial))
        assert store.epochs() == list(range(final.epochs + 1))
        here, there = (CheckpointStore(trial_dir(r, trial)).load(final.epochs) for r in (tmp_path, root))
        assert (here["finished"], here["stopped_early"], here["pruned"]) == (True, True, True)
        assert [here["history"], str(here["fitting"])] == [there["history"], str(there["fitting"])]
        assert all((tensor == there["module"][name]).all() for name, tensor in here["module"].items())
        last = {name: value for name, value in final.metrics.items() if name != "parameters"}
        assert last == expected[trial].epochs[final.epochs - 1]


def test_a_metric_that_is_never_logged_is_named(tmp_path: Path) -> None:
    config = evaluator()
    spec = make_job(NET, config, sample(NET, config, 2))
    events = train(but(spec, **HALVING | {"objectives": [Objective(metric="val_auroc")]}), tmp_path)
    errors = [evicted.error.splitlines()[0] for evicted in evictions(events).values()]
    said = (
        "TrialError: objectives: no metric 'val_auroc' was logged, which the pruner needs in every epoch; there are: "
    )
    assert errors == [f"{said}parameters, train_loss, val_accuracy, val_loss"] * 2


def test_a_pruner_that_fails_ends_the_job(tmp_path: Path) -> None:
    """It is nobody's own doing, and the members can train without it."""
    config = evaluator()
    broken = CustomPrunerConfig(target="pruners.py:Broken")
    spec = but(make_job(NET, config, sample(NET, config, 2)), pruner=broken, objectives=ACCURATE)
    with pytest.raises(ZeroDivisionError):
        train(spec, tmp_path)


# --- places ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> tuple[JobSpec, Outcomes]:
    """Seven trials that end at different epochs, some by early stopping, side by side."""
    root = tmp_path_factory.mktemp("together")
    spec = make_job(NET, STOPPING, sample(NET, STOPPING, 7, seed=4))
    events = train(spec, root)
    assert {final.epochs for final in finals(events).values()} >= {1, 2, 3}
    assert {final.stopped_early for final in finals(events).values()} == {True, False}
    return spec, outcomes(spec, events, root)


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The trials whose members were built, in order, as it goes."""
    numbers: list[int] = []
    make = job_module.make_member

    def counted(job: Any, spec: Any, *others: Any) -> Any:
        numbers.append(spec.trial)
        return make(job, spec, *others)

    monkeypatch.setattr(job_module, "make_member", counted)
    return numbers


@pytest.mark.parametrize("places", [1, 2, 5])
def test_members_that_waited_end_as_those_that_did_not(
    places: int,
    together: tuple[JobSpec, Outcomes],
    built: list[int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spec, expected = together
    make, members, alive = job_module.make_member, list[Any](), list[int]()

    def watched(*arguments: Any) -> Any:
        member = make(*arguments)
        members.append(weakref.ref(member))
        gc.collect()
        alive.append(sum(ref() is not None for ref in members))
        return member

    monkeypatch.setattr(job_module, "make_member", watched)
    events = train(but(spec, places=places), tmp_path)
    assert outcomes(spec, events, tmp_path) == expected
    assert max(alive) == places
    assert sorted(built) == list(range(7))
    started = events[0]
    assert isinstance(started, Started)
    assert started.waiting == list(range(places, 7))
    assert [event.trial for event in events if isinstance(event, Entered)] == started.waiting == built[places:]


def test_alone_and_among_members_that_come_and_go(together: tuple[JobSpec, Outcomes], tmp_path: Path) -> None:
    spec, expected = together
    alone = but(spec, members=spec.members[-1:])
    assert outcome(train(alone, tmp_path), tmp_path, 6) == expected[6]


def test_a_failure_makes_room_too(tmp_path: Path) -> None:
    """Be it when it is built, in the first epoch or in a later one; also where no other member is left to train."""
    config = evaluator(epochs=3)
    net = {"width": 8, "depth": 1, "dropout": 0.3, "after": 1, "training": True}
    kinds = ["build", "raise", "none", "nan", "build exit", "exit", "none", "raise", "build"]
    members = [{**net, "fault": kind, "after": 6 if trial == 7 else 1} for trial, kind in enumerate(kinds)]
    spec = make_job("spaces.py:faulty", config, members)
    healthy = but(spec, members=[member for member in spec.members if kinds[member.trial] == "none"])
    expected = outcomes(healthy, train(healthy, tmp_path / "healthy"), tmp_path / "healthy")
    for places in (1, 2):
        root = tmp_path / str(places)
        events = train(but(spec, places=places), root)
        assert isinstance(events[-1], Ended)
        assert finals(events).keys() == expected.keys() == {2, 6}
        assert outcomes(healthy, events, root) == expected
        assert {trial: evicted.epoch for trial, evicted in evictions(events).items()} == {
            **{0: 0, 1: 1, 3: 1, 4: 0, 5: 1, 7: 2, 8: 0}
        }


def test_fused_members_come_and_go_too(tmp_path: Path) -> None:
    """Steps that are made together differ in no more than rounding, whoever leaves and whoever enters."""
    members = sample(NET, CONFIG, 12)
    apart, fused = (but(make_job(NET, CONFIG, members, fuse=fuse), places=5, **HALVING) for fuse in ("never", "always"))
    expected = outcomes(apart, train(apart, tmp_path / "apart"), tmp_path / "apart")
    events = train(fused, tmp_path / "fused")
    assert not evictions(events)
    for trial, found in outcomes(fused, events, tmp_path / "fused").items():
        assert len(found.epochs) == len(expected[trial].epochs)
        assert found.stopped_early is expected[trial].stopped_early
        for metrics, others in zip(found.epochs, expected[trial].epochs, strict=True):
            assert metrics == pytest.approx(others, rel=1e-6)


# --- interrupted -------------------------------------------------------------------------------------------------


class Interrupted(BaseException):
    """Ends a job from within, as Ctrl-C would."""


def pruned_and_waiting(every_epochs: int) -> JobSpec:
    """Of twelve members five train at a time, for four epochs at most, and the better half goes on after 1 and 2."""
    config = CONFIG.model_copy(update={"data": evaluator().data, "precision": "32-true"})
    return but(make_job(NET, config, sample(NET, config, 12), every_epochs=every_epochs), places=5, **HALVING)


@pytest.fixture(scope="module", params=[1, 3], ids=["every epoch", "every third epoch"])
def pruned(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pruned:
    """The job, what it tells, and what becomes of its members when nothing disturbs it."""
    root = tmp_path_factory.mktemp("pruned")
    spec = pruned_and_waiting(request.param)
    events = train(spec, root)
    assert {final.epochs for final in finals(events).values()} == {1, 2, 4}
    assert sum(isinstance(event, Entered) for event in events) == 7
    return spec, events, outcomes(spec, events, root)


def told(events: list[Event]) -> set[tuple[int, int]]:
    return {(event.trial, event.epoch) for event in events if isinstance(event, Epoch) and not event.replayed}


@pytest.mark.parametrize("after", [6, 13, 30])
def test_interrupted_after_an_event(after: int, pruned: Pruned, tmp_path: Path) -> None:
    spec, undisturbed, expected = pruned
    first: list[Event] = []

    def tell(event: Event) -> None:
        first.append(event)
        if len(first) == after:
            raise Interrupted

    with pytest.raises(Interrupted):
        TrainingJob(spec, tmp_path, tell).run()
    again = train(spec, tmp_path)
    assert outcomes(spec, again, tmp_path) == expected
    assert finals(again) == {
        n: f.model_copy(update={"at": finals(again)[n].at}) for n, f in finals(undisturbed).items()
    }
    if spec.checkpoint.every_epochs == 1:
        assert not told(first) & told(again)


@pytest.mark.parametrize("saves", [(3, 8, 5), (19, 2)], ids=str)
def test_interrupted_before_a_checkpoint(
    saves: tuple[int, ...], pruned: Pruned, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Again and again: so some members of an epoch are saved, and some are not."""
    spec, _, expected = pruned
    left = 0

    def counted(save: Callable[..., Any]) -> Callable[..., Any]:
        def counted_save(*args: Any) -> Any:
            nonlocal left
            left -= 1
            if left == 0:
                raise Interrupted
            return save(*args)

        return counted_save

    for left in saves:  # noqa: B007
        with monkeypatch.context() as patch, pytest.raises(Interrupted):
            for name in ("write", "link"):  # of the first that are saved together, and of each of the others
                patch.setattr(CheckpointStore, name, counted(getattr(CheckpointStore, name)))
            train(spec, tmp_path)
    assert outcomes(spec, train(spec, tmp_path), tmp_path) == expected


def test_started_again_without_those_that_have_ended(pruned: Pruned, tmp_path: Path) -> None:
    """As a batch is whose job was lost: what is on record of its other members still counts."""
    spec, _, expected = pruned
    first: list[Event] = []

    def tell(event: Event) -> None:
        first.append(event)
        if sum(isinstance(event, Final) for event in first) == 4:
            raise Interrupted

    with pytest.raises(Interrupted):
        TrainingJob(spec, tmp_path, tell).run()
    peers = [
        PeerSpec(
            **dict(next(member for member in spec.members if member.trial == trial)),
            history=expected[trial].epochs,
            parameters=int(final.metrics["parameters"]),
            failed=False,
        )
        for trial, final in finals(first).items()
    ]
    rest = but(spec, members=[m for m in spec.members if m.trial not in finals(first)], peers=peers)
    again = train(rest, tmp_path)
    assert finals(again).keys() == {member.trial for member in rest.members}
    assert outcomes(rest, again, tmp_path) == {member.trial: expected[member.trial] for member in rest.members}


def test_killed(pruned: Pruned, tmp_path: Path) -> None:
    """A real process and a real SIGKILL, twice, the second time while the first newcomers train."""
    spec, _, expected = pruned
    file = job_dir(tmp_path, spec.job_id) / "job.json"
    file.parent.mkdir(parents=True)
    file.write_text(spec.model_dump_json())
    for kind in (Epoch, Entered):
        process = multiprocessing.get_context("fork").Process(target=run_until_killed, args=(file, kind))
        process.start()
        process.join()
        assert process.exitcode == -signal.SIGKILL
    assert run_job_file(file) == 0
    events = [parse_event(line) for line in read_lines(file.with_name("events.jsonl"))[0]]
    assert sum(isinstance(event, Started) for event in events) == 3
    assert outcomes(spec, events, tmp_path) == expected


def run_until_killed(file: Path, kind: type[Event]) -> None:
    write = EventWriter.write
    count = 0

    def counted(writer: EventWriter, event: Any) -> None:
        nonlocal count
        write(writer, event)
        count += isinstance(event, kind)
        if count == 3:
            os.kill(os.getpid(), signal.SIGKILL)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(EventWriter, "write", counted)
        run_job_file(file)
