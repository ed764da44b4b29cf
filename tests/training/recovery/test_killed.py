"""Jobs killed with SIGKILL at any point: the next process goes on, and nothing is lost or told twice."""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nasflow.checkpoint.bundle import Snapshot
from nasflow.checkpoint.store import CheckpointStore
from nasflow.job.events import Ended, Epoch, Event, EventWriter, Final, Started, parse_event, read_lines
from nasflow.job.spec import JobSpec, job_dir
from nasflow.training.driver import Driver
from nasflow.training.member.member import Member
from nasflow.training.runner import run_job_file
from tests.training.jobs import Outcome, evaluator, make_job, outcome, sample

NET = "spaces.py:net"
CONFIG = evaluator(
    data={"target": "spaces.py:augmented"},
    epochs=3,
    optimizer={"lr": {"float": [0.01, 0.1]}},
    schedule={"name": "cosine"},
    gradient_clip_val=0.5,
)
SPEC = make_job(NET, CONFIG, sample(NET, CONFIG, 3))

Outcomes = dict[int, Outcome]


def write_job(root: Path, spec: JobSpec = SPEC) -> Path:
    file = job_dir(root, spec.job_id) / "job.json"
    file.parent.mkdir(parents=True)
    file.write_text(spec.model_dump_json())
    return file


def events_of(job_file: Path) -> list[Event]:
    """The events that can be read; a torn line in their midst is what a kill may leave."""
    events = []
    for line in read_lines(job_file.with_name("events.jsonl"))[0]:
        try:
            events.append(parse_event(line))
        except ValueError:
            assert not line.endswith("}")
    return events


def outcomes(job_file: Path) -> Outcomes:
    root = job_file.parents[2]
    return {member.trial: outcome(events_of(job_file), root, member.trial) for member in SPEC.members}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    job_file = write_job(tmp_path_factory.mktemp("undisturbed"))
    assert run_job_file(job_file) == 0
    return outcomes(job_file)


def check_story(events: list[Event], starts: int) -> None:
    """One start a process, one end, and each epoch trained and told once, apart from being replayed."""
    assert [type(event) for event in events].count(Started) == starts
    assert [type(event) for event in events].count(Ended) == 1
    assert isinstance(events[-1], Ended)
    assert events[-1].error is None
    fresh = Counter((e.trial, e.epoch) for e in events if isinstance(e, Epoch) and not e.replayed)
    assert max(fresh.values()) == 1
    everything = {(e.trial, e.epoch) for e in events if isinstance(e, Epoch)}
    assert everything == {(trial, epoch) for trial in range(3) for epoch in (1, 2, 3)}
    for trial, epoch in everything:
        told = [e.metrics for e in events if isinstance(e, Epoch) and (e.trial, e.epoch) == (trial, epoch)]
        assert told == [told[0]] * len(told)
    assert {e.trial for e in events if isinstance(e, Final)} == {0, 1, 2}


def test_the_program(undisturbed: Outcomes, tmp_path: Path) -> None:
    """`python -m nasflow.training.runner`, killed from outside while it works, with data slow enough to be in time."""
    slowly = CONFIG.data.model_copy(update={"params": {"pause": 0.01}})
    slow = CONFIG.model_copy(update={"data": slowly})
    job_file = write_job(tmp_path, SPEC.model_copy(update={"evaluator": slow, "data": slowly}))
    runner = subprocess.Popen([sys.executable, "-m", "nasflow.training.runner", str(job_file)])
    while len(seen(job_file)) < 4:
        assert runner.poll() is None, "it ended before it could be killed"
        time.sleep(0.01)
    runner.send_signal(signal.SIGKILL)
    assert runner.wait() == -signal.SIGKILL
    with (job_file.with_name("events.jsonl")).open("ab") as file:
        file.write(b'{"kind": "epoch", "tri')
    assert run_job_file(job_file) == 0
    check_story(events_of(job_file), starts=2)
    assert outcomes(job_file) == undisturbed


def seen(job_file: Path) -> set[tuple[int, int]]:
    return {(e.trial, e.epoch) for e in events_of(job_file) if isinstance(e, Epoch)}


def die(*_: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def on_call(
    place: Any, name: str, count: int, instead: Callable[..., None] = die, when: Callable[..., bool] = lambda *_: True
) -> None:
    """Have the `count`th call of `place.name`, of those that `when` means, do something else instead."""
    call = getattr(place, name)
    calls = 0

    def wrapped(*args: Any) -> Any:
        nonlocal calls
        calls += when(*args)
        return instead(*args) if calls == count and when(*args) else call(*args)

    setattr(place, name, wrapped)


def begin_epochs_once_saved() -> None:
    """Have an epoch begin when everything before it is saved and told."""
    start = Driver.start_epoch

    def start_epoch(driver: Any) -> None:
        driver._checkpoints.wait()
        start(driver)

    Driver.start_epoch = start_epoch


def tells_epoch(_: EventWriter, event: Event) -> bool:
    return isinstance(event, Epoch)


def before_telling(count: int) -> None:
    on_call(EventWriter, "write", count, when=tells_epoch)


def while_telling(count: int) -> None:
    def half(writer: Any, event: Event) -> None:
        writer._file.write(event.model_dump_json()[:30].encode())
        writer._file.flush()
        die()

    on_call(EventWriter, "write", count, half, tells_epoch)


def while_writing(count: int) -> None:
    write = Snapshot.write

    def half(snapshot: Snapshot, path: Path) -> None:
        write(snapshot, path)
        os.truncate(path, path.stat().st_size // 2)
        die()

    on_call(Snapshot, "write", count, half)


def before_renaming(count: int) -> None:
    on_call(Path, "replace", count)


def before_linking(count: int) -> None:
    on_call(os, "link", count)


def after_linking(count: int) -> None:
    link = os.link

    def then_die(*args: Any) -> None:
        link(*args)
        die()

    on_call(os, "link", count, then_die)


def after_renaming(count: int) -> None:
    on_call(CheckpointStore, "retain", count)


def in_a_step(count: int) -> None:
    on_call(Member, "train_batch", count)


KILLS = [
    *((before_telling, 1), (before_telling, 9), (while_telling, 4), (while_writing, 1), (while_writing, 4)),
    *((before_renaming, 3), (after_renaming, 1), *((after_renaming, count) for count in range(7, 13)), (in_a_step, 22)),
    *((before_linking, 1), (before_linking, 4), (before_linking, 7), (after_linking, 2), (after_linking, 5)),
]


def killed(job_file: Path, how: Callable[[int], None], count: int) -> None:
    """Run the job in a process of its own that is killed there."""

    def run() -> None:
        how(count)
        run_job_file(job_file)

    process = multiprocessing.get_context("fork").Process(target=run)
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL


def assert_only_checkpoints(root: Path) -> None:
    """Of every trial, those of the last two epochs, and nothing left aside."""
    files = {path.relative_to(root / "trials").as_posix() for path in (root / "trials").glob("*/*")}
    assert files == {f"{trial:05d}/epoch-{epoch:04d}.safetensors" for trial in range(3) for epoch in (2, 3)}


@pytest.mark.parametrize(("how", "count"), KILLS, ids=[f"{how.__name__} {count}" for how, count in KILLS])
def test_at_the_worst_moment(how: Callable[[int], None], count: int, undisturbed: Outcomes, tmp_path: Path) -> None:
    job_file = write_job(tmp_path)
    killed(job_file, how, count)
    assert run_job_file(job_file) == 0
    check_story(events_of(job_file), starts=2)
    assert outcomes(job_file) == undisturbed
    assert_only_checkpoints(tmp_path)


def test_again_and_again(undisturbed: Outcomes, tmp_path: Path) -> None:
    job_file = write_job(tmp_path)
    for how, count in (
        (while_writing, 2),
        (before_linking, 4),
        (before_telling, 2),
        (in_a_step, 8),
        (after_renaming, 6),  # the first three as it loads
        (before_telling, 2),
    ):
        killed(job_file, how, count)
    assert run_job_file(job_file) == 0
    check_story(events_of(job_file), starts=7)
    assert outcomes(job_file) == undisturbed


def test_a_member_that_ends_the_process(tmp_path: Path) -> None:
    """No event says so: that is how a crash is known. The others lose the epoch in flight at most."""
    net = {"width": 8, "depth": 1, "dropout": 0.3, "after": 6, "training": True, "optimizer.lr": 0.05}
    spec = make_job("spaces.py:faulty", CONFIG, {3: {**net, "fault": "none"}, 7: {**net, "fault": "die"}})
    job_file = write_job(tmp_path, spec)

    def run() -> None:
        begin_epochs_once_saved()  # so that only the second epoch is in flight when it dies
        run_job_file(job_file)

    process = multiprocessing.get_context("fork").Process(target=run)
    process.start()
    process.join()
    assert process.exitcode == 1
    events = events_of(job_file)
    assert not [event for event in events if isinstance(event, Ended)]
    assert seen(job_file) == {(3, 1), (7, 1)}
    assert (
        run_job_file(write_job(tmp_path, spec.model_copy(update={"job_id": "retry", "members": spec.members[:1]}))) == 0
    )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"data": {"target": "spaces.py:nothing", "params": {}}}, "ConfigError: target 'spaces.py:nothing'"),
        ({"members": []}, "ValidationError: 1 validation error for JobSpec"),
    ],
    ids=["data", "members"],
)
def test_a_job_that_can_not_run_says_why(change: dict[str, Any], said: str, tmp_path: Path) -> None:
    values = SPEC.model_dump(mode="json") | change
    if "data" in change:
        values["evaluator"] |= change
    job_file = write_job(tmp_path)
    job_file.write_text(json.dumps(values))
    assert run_job_file(job_file) == 1
    ended = events_of(job_file)[-1]
    assert isinstance(ended, Ended)
    assert ended.error is not None
    assert ended.error.startswith(said)
