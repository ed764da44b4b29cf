"""A job that is asked to end by SIGTERM saves the running epoch if that is wanted, and goes on to the same bits."""

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from nasflow.checkpoint.store import CheckpointStore
from nasflow.job.events import Ended, Epoch, Planned, Started, parse_event
from nasflow.job.spec import JobSpec, job_dir, trial_dir
from nasflow.training.runner import run_job_file
from nasflow.training_service.machine.job_process import become_job
from tests.training.interrupted import halves, preempted
from tests.training.jobs import EvaluatorConfig, evaluator, evictions, make_job, outcome, sample, train

LR = {"float": [0.01, 0.1]}


def job_of(
    tmp_path: Path, space: str, config: dict[str, Any], fuse: Any, count: int = 4, **data: Any
) -> tuple[JobSpec, EvaluatorConfig]:
    target = {"target": "spaces.py:taken_back", "params": {"marker": str(tmp_path / "marker"), **data}}
    made = evaluator(data=target, epochs=3, **config)
    return make_job(space, made, sample(space, made, count), fuse=fuse, on_preempt=True), made


CASES: dict[str, tuple[str, dict[str, Any], str, dict[str, Any]]] = {
    "solo": (
        "spaces.py:net",
        {"optimizer": {"name": "adamw", "lr": LR}, "schedule": {"name": "cosine"}, "metrics": ["accuracy", "auroc"]},
        "never",
        {},
    ),
    "fused": ("fused_spaces.py:mixed", {"precision": "64-true", "optimizer": {"name": "adam", "lr": LR}}, "always", {}),
    "fused in float32": ("spaces.py:net", {"optimizer": {"name": "sgd", "momentum": 0.9, "lr": LR}}, "always", {}),
    "images": ("fused_spaces.py:images", {"optimizer": {"name": "rmsprop", "lr": LR}}, "always", {"of": "images"}),
    "first epoch": ("spaces.py:net", {"optimizer": {"name": "adamw", "lr": LR}}, "always", {"passed": 0}),
    "a part of a pass": (
        "spaces.py:net",
        {"optimizer": {"name": "adamw", "lr": LR}, "batches_per_epoch": 3},
        "always",
        {},
    ),
    "last batch": ("spaces.py:net", {"optimizer": {"name": "adamw", "lr": LR}}, "always", {"passed": 2, "batch": 4}),
}


@pytest.mark.parametrize("case", CASES)
def test_goes_on_within_an_epoch(case: str, tmp_path: Path) -> None:
    space, config, fuse, data = CASES[case]
    spec, _ = job_of(tmp_path, space, config, fuse, **data)
    preempted(spec, tmp_path / "twice")
    assert len(halves(tmp_path / "twice")) == 1
    again = train(spec, tmp_path / "twice")
    whole = train(spec, tmp_path / "once")
    assert not evictions(whole) and not evictions(again)
    if fuse == "always":
        plans = [[event for event in events if isinstance(event, Planned)] for events in (again, whole)]
        assert plans[0][-1].units == plans[1][-1].units
    for member in spec.members:
        assert outcome(again, tmp_path / "twice", member.trial) == outcome(whole, tmp_path / "once", member.trial)
        assert not halves(tmp_path / "twice", member.trial)


def test_a_users_module_with_a_metric(tmp_path: Path) -> None:
    """A torchmetrics metric that training updates in each step goes on; the time of the epoch counts whole."""
    module = {"kind": "lightning", "module": {"target": "lightning_modules.py:CountsInTraining"}}
    spec, _ = job_of(tmp_path, "spaces.py:net", module, "never", count=2)
    preempted(spec, tmp_path / "twice")
    again, whole = train(spec, tmp_path / "twice"), train(spec, tmp_path / "once")
    for member in spec.members:
        assert outcome(again, tmp_path / "twice", member.trial) == outcome(whole, tmp_path / "once", member.trial)


def test_steps_that_run_once_for_all(tmp_path: Path) -> None:
    """What they logged, and the states of metrics, which are kept for all members together, go on."""
    module = {"kind": "lightning", "module": {"target": "joint_modules.py:Measures"}, "precision": "64-true"}
    spec, _ = job_of(tmp_path, "fused_spaces.py:mixed", module, "always")
    preempted(spec, tmp_path / "twice")
    assert len(halves(tmp_path / "twice")) == 1
    again, whole = train(spec, tmp_path / "twice"), train(spec, tmp_path / "once")
    for member in spec.members:
        assert outcome(again, tmp_path / "twice", member.trial) == outcome(whole, tmp_path / "once", member.trial)


def test_a_module_with_an_epoch_hook_repeats_its_epoch(tmp_path: Path) -> None:
    """What it collects for the hook is not known."""
    module = {"kind": "lightning", "module": {"target": "lightning_modules.py:Collects"}}
    spec, _ = job_of(tmp_path, "spaces.py:net", module, "never", count=1)
    preempted(spec, tmp_path / "twice")  # an epoch has ended
    assert not halves(tmp_path / "twice")
    again, whole = train(spec, tmp_path / "twice"), train(spec, tmp_path / "once")
    assert outcome(again, tmp_path / "twice", 0) == outcome(whole, tmp_path / "once", 0)


def test_again_and_again(tmp_path: Path) -> None:
    """Preempted again while it passes over what it had trained, and after that."""
    spec, config = job_of(tmp_path, "spaces.py:net", {"optimizer": {"name": "adamw", "lr": LR}}, "always", batch=3)
    preempted(spec, tmp_path / "twice")
    [half] = halves(tmp_path / "twice")
    (tmp_path / "marker").unlink()
    sooner = spec.model_copy(
        update={
            "data": config.data.model_copy(
                update={"params": {"marker": str(tmp_path / "marker"), "passed": 0, "batch": 1}}
            )
        }
    )
    sooner = sooner.model_copy(update={"evaluator": config.model_copy(update={"data": sooner.data})})
    preempted(sooner, tmp_path / "twice", saved=False)
    assert halves(tmp_path / "twice") == [half]
    again, whole = train(spec, tmp_path / "twice"), train(spec, tmp_path / "once")
    for member in spec.members:
        assert outcome(again, tmp_path / "twice", member.trial) == outcome(whole, tmp_path / "once", member.trial)


def test_fifty_times_in_a_job(tmp_path: Path) -> None:
    """No step is made twice; the job's start is what each costs."""
    config = evaluator(data={"target": "spaces.py:taken_back"}, epochs=32, optimizer={"name": "adamw", "lr": LR})
    steps = tmp_path / "steps"
    space, members = "spaces.py:counted", [{"optimizer.lr": 0.02}]

    def spec(marker: str, passed: int, batch: int) -> JobSpec:
        params = {"marker": str(tmp_path / marker), "passed": passed, "batch": batch}
        made = config.model_copy(update={"data": config.data.model_copy(update={"params": params})})
        job = make_job(space, made, members, fuse="never", on_preempt=True)
        return job.model_copy(update={"space": job.space.model_copy(update={"params": {"counter": str(steps)}})})

    for number in range(1, 51):
        (begun, _), (epoch, batch) = divmod(3 * (number - 1), 5), divmod(3 * number, 5)
        preempted(spec(f"marker-{number}", epoch - begun, batch), tmp_path / "often")
    again = train(spec("marker-50", 0, 0), tmp_path / "often")
    assert len(steps.read_bytes()) == 32 * 5
    whole = train(spec("marker-50", 0, 0), tmp_path / "once")
    assert outcome(again, tmp_path / "often", 0) == outcome(whole, tmp_path / "once", 0)


@pytest.mark.parametrize("damage", ["cut", "gone"])
def test_a_state_that_can_not_be_read(damage: str, tmp_path: Path) -> None:
    """One member's: all that were with it train the epoch from its start."""
    spec, _ = job_of(tmp_path, "spaces.py:net", {"optimizer": {"name": "adamw", "lr": LR}}, "always")
    preempted(spec, tmp_path / "twice")
    file = trial_dir(tmp_path / "twice", 2) / halves(tmp_path / "twice", 2)[0]
    content = file.read_bytes()
    file.unlink()
    if damage == "cut":
        file.write_bytes(content[: len(content) // 2])
    again, whole = train(spec, tmp_path / "twice"), train(spec, tmp_path / "once")
    assert not evictions(again)
    for member in spec.members:
        assert outcome(again, tmp_path / "twice", member.trial) == outcome(whole, tmp_path / "once", member.trial)
        assert not halves(tmp_path / "twice", member.trial)


def test_in_validation_the_epoch_ends(tmp_path: Path) -> None:
    target = {"target": "spaces.py:taken_back_in_validation", "params": {"marker": str(tmp_path / "marker")}}
    config = evaluator(data=target, epochs=3)
    spec = make_job("spaces.py:net", config, sample("spaces.py:net", config, 2), on_preempt=True)
    events = preempted(spec, tmp_path / "twice")
    assert [(event.trial, event.epoch) for event in events if isinstance(event, Epoch)] == [
        (0, 1),
        (1, 1),
        (0, 2),
        (1, 2),
    ]
    assert CheckpointStore(trial_dir(tmp_path / "twice", 0)).epochs()[-1] == 2


def test_without_the_key_the_job_ends_at_once(tmp_path: Path) -> None:
    spec, _ = job_of(tmp_path, "spaces.py:net", {}, "never")
    spec = spec.model_copy(update={"checkpoint": spec.checkpoint.model_copy(update={"on_preempt": False})})
    events = preempted(spec, tmp_path / "twice")
    assert not halves(tmp_path / "twice")
    assert {event.epoch for event in events if isinstance(event, Epoch)} == {1}
    again = train(spec, tmp_path / "twice")
    [started] = [event for event in again if isinstance(event, Started)]
    assert set(started.resumed.values()) == {1}


def test_a_process_that_is_asked_to_end_blames_no_trial(tmp_path: Path) -> None:
    """Lightning alone would leave with exit code 0, and no word of why."""
    config = evaluator(data={"target": "spaces.py:augmented"}, epochs=1000)
    spec = make_job("spaces.py:net", config, sample("spaces.py:net", config, 2))
    job = job_dir(tmp_path, spec.job_id) / "job.json"
    job.parent.mkdir(parents=True)
    job.write_text(spec.model_dump_json())
    events = job.with_name("events.jsonl")
    here = os.getpid()
    child = os.fork()
    if child == 0:
        become_job(here, job.with_name("job.log"), lambda: run_job_file(job))
    while not (events.exists() and '"epoch"' in events.read_text()):
        time.sleep(0.01)
    os.kill(child, signal.SIGTERM)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 1
    last = parse_event(events.read_text().splitlines()[-1])
    assert isinstance(last, Ended) and last.infrastructure and last.preempted
    assert json.loads(events.read_text().splitlines()[-1])["error"].startswith("the job's process was asked to end")
