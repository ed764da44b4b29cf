"""A disk that fills up while a job trains."""

import errno
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from nasflow.checkpoint.bundle import Snapshot
from nasflow.checkpoint.store import CheckpointStore
from nasflow.errors import InfrastructureError
from nasflow.job import disk_full
from nasflow.job.disk_full import wait_for_room
from nasflow.job.events import Alert, Epoch, Event, EventWriter, Final
from nasflow.job.spec import CANNOT_WRITE, job_dir, trial_dir
from nasflow.training.runner import run_job_file
from nasflow.training.training_job import TrainingJob
from tests.flows.forked_commands import run_forked
from tests.job.full_disk import SPACE
from tests.training.jobs import BLOBS, evaluator, make_job, outcome, sample, train


def full(*_: Any) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_training_goes_on_and_what_ended_is_told_when_there_is_room(tmp_path: Path) -> None:
    """A real file system that really is full."""
    command = ["unshare", *([] if os.geteuid() == 0 else ["--map-root-user"]), "--mount", "true"]
    if subprocess.run(command, check=False, capture_output=True).returncode != 0:
        pytest.skip("this machine lets no one have a mount namespace")
    module = ["python", "-m", "tests.job.full_disk", tmp_path]
    done = run_forked(module, Path(__file__).parents[2], os.environ, timeout=120)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["code"] == 0
    assert told["ended well"]
    assert [text.partition(":")[0] for text in told["alerts"]] == [f"checkpoints can't be saved in {tmp_path}"]
    assert "os error 28" in told["alerts"][0] or "No space left" in told["alerts"][0]
    assert told["finals before there was room"] == 0
    config = evaluator(data={"target": "spaces.py:augmented"}, epochs=5)
    root = tmp_path / "undisturbed"
    events = train(make_job(SPACE, config, sample(SPACE, config, 2)), root)
    for trial in range(2):
        expected = outcome(events, root, trial)
        assert (told["epochs"][trial], told["finals"][trial]) == (expected.epochs, expected.final)
        assert told["tensors"][trial] == {name: tensor.tolist() for name, tensor in expected.tensors.items()}


def test_if_there_never_is_room_it_is_nobodys_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the job goes on from the last checkpoint when it is started again."""
    config = evaluator(epochs=3)
    spec = make_job(SPACE, config, sample(SPACE, config, 2))
    monkeypatch.setattr(disk_full, "SECONDS", 0.0)
    write = Snapshot.write
    events: list[Event] = []

    def fills_up(snapshot: Snapshot, path: Path) -> None:
        full() if path.name >= "epoch-0002" else write(snapshot, path)

    with monkeypatch.context() as patch:
        patch.setattr(Snapshot, "write", fills_up)
        with pytest.raises(InfrastructureError, match=r"trials \[0, 1\] .* No space left on device; make room there"):
            TrainingJob(spec, tmp_path, events.append).run()
    assert sum(isinstance(event, Alert) for event in events) == 1
    assert sum(isinstance(event, Epoch) for event in events) == 6
    assert not any(isinstance(event, Final) for event in events)
    assert CheckpointStore(trial_dir(tmp_path, 0)).epochs() == [0, 1]
    again = train(spec, tmp_path)
    whole = train(spec, tmp_path / "whole")
    for trial in range(2):
        assert outcome(again, tmp_path, trial) == outcome(whole, tmp_path / "whole", trial)


def test_events_wait_for_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def write() -> int:
        calls.append(1)
        if len(calls) < 3:
            full()
        return 7

    monkeypatch.setattr(disk_full, "POLL", 0.001)
    assert wait_for_room(write) == 7
    monkeypatch.setattr(disk_full, "SECONDS", 0.01)
    with pytest.raises(OSError, match="No space left"):
        wait_for_room(full)
    with pytest.raises(FileNotFoundError):
        wait_for_room((tmp_path / "none").read_bytes)  # for this it does not wait


def test_a_job_that_can_not_even_tell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = evaluator(data=BLOBS)
    spec = make_job(SPACE, config, sample(SPACE, config, 1))
    folder = job_dir(tmp_path, spec.job_id)
    folder.mkdir(parents=True)
    (folder / "job.json").write_text(spec.model_dump_json())
    monkeypatch.setattr(EventWriter, "write", full)
    assert run_job_file(folder / "job.json") == CANNOT_WRITE
