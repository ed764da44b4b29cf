"""Checkpoints of a job's members that are copied to a URL."""

import shutil
import uuid
from pathlib import Path

import fsspec
import pytest
from pydantic import ValidationError

from nasflow.config.search import CheckpointConfig
from nasflow.config.secret.secret_url import SecretUrl
from nasflow.config.secret.secrets import give
from nasflow.job.events import Alert, Epoch, Started
from nasflow.job.spec import JobSpec, trial_dir
from tests.training.interrupted import interrupted
from tests.training.jobs import evaluator, make_job, outcome, sample, train

NET = "spaces.py:net"
CONFIG = evaluator(epochs=4, optimizer={"lr": {"float": [0.01, 0.1]}})


def job(url: str) -> JobSpec:
    spec = make_job(NET, CONFIG, sample(NET, CONFIG, 3))
    return spec.model_copy(update={"checkpoint": CheckpointConfig(url=url)})


def test_a_job_goes_on_elsewhere(tmp_path: Path) -> None:
    """Where none of its files are, but for those at the URL; and where the older ones are."""
    spec = job(f"memory://{uuid.uuid4()}")
    whole = train(job(f"file://{tmp_path}/whole-far"), tmp_path / "whole")
    interrupted(spec, tmp_path / "here", trial=2, epoch=2)
    shutil.copytree(tmp_path / "here", tmp_path / "there")
    for trial in range(3):
        shutil.rmtree(trial_dir(tmp_path / "there", trial))
    again = train(spec, tmp_path / "there")
    assert isinstance(again[0], Started)
    assert min(again[0].resumed.values()) >= 1
    for trial in range(3):
        assert outcome(again, tmp_path / "there", trial) == outcome(whole, tmp_path / "whole", trial)
    far = train(spec, tmp_path / "anywhere")
    assert all(event.replayed for event in far if isinstance(event, Epoch)), "all of it had come to its end"
    files = fsspec.filesystem("memory").find(f"{spec.checkpoint.url}/study/trials/00001")
    assert len(files) == 4, "two checkpoints, each with its manifest"


def test_a_storage_that_fails_stops_nobody(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    events = train(job(f"file://{tmp_path}/file/below"), tmp_path / "root")
    alerts = [event.text.partition(" file:")[0] for event in events if isinstance(event, Alert)]
    assert alerts == ["checkpoints can't be read from", "checkpoints can't be copied to"]
    assert sum(isinstance(event, Epoch) for event in events) == 12


def test_a_storage_that_nobody_knows_stops_nobody(tmp_path: Path) -> None:
    events = train(job("nowhere://folder"), tmp_path / "root")
    alerts = [event.text for event in events if isinstance(event, Alert)]
    assert [("Protocol not known: nowhere" in text) for text in alerts] == [True, True]
    assert sum(isinstance(event, Epoch) for event in events) == 12


def test_what_is_no_url_is_refused() -> None:
    with pytest.raises(ValidationError, match="is no URL"):
        CheckpointConfig(url="here/there")


def test_a_password_in_the_url_is_in_no_file_of_the_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The job is given it in another way; without that it says what is missing."""
    url = f"memory://me:hush@{uuid.uuid4()}"
    spec = JobSpec.model_validate_json(job(url).model_dump_json())
    events = train(spec, tmp_path / "untold")
    alerts = [event.text for event in events if isinstance(event, Alert)]
    assert len(alerts) == 2 and all("memory://me:***@" in alert and "write {env: NAME}" in alert for alert in alerts)
    monkeypatch.setattr("nasflow.config.secret.secrets._given", {})
    give({str(SecretUrl(url)): url})
    train(spec, tmp_path / "told")
    assert fsspec.filesystem("memory").find(f"{url}/study/trials/00001")
    files = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert files and not [file for file in files if b"hush" in file.read_bytes()]
