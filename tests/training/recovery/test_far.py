"""Checkpoints of a job's members that are copied to a URL."""

import errno
import math
import shutil
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from pydantic import ValidationError

from nasflow.checkpoint import far_copies
from nasflow.checkpoint.bundle import Bundle
from nasflow.checkpoint.packing import pack
from nasflow.checkpoint.store import CheckpointStore
from nasflow.checkpoint.url_store import UrlStore
from nasflow.config.search import CheckpointConfig, Objective
from nasflow.config.secret.secret_url import SecretUrl
from nasflow.config.secret.secrets import give
from nasflow.errors import CheckpointError, InfrastructureError
from nasflow.job.events import Alert, Ended, Epoch, Event, Final, Started
from nasflow.job.spec import JobSpec, trial_dir
from nasflow.testing.training_service import until
from nasflow.training import member_checkpoints
from nasflow.training.training_job import TrainingJob
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


def test_another_study_of_that_name_has_its_own_copies(tmp_path: Path) -> None:
    """As one that was begun in another store, or by somebody else."""
    first = job(f"file://{tmp_path}/far").model_copy(update={"copies": "study@1"})
    train(first, tmp_path / "first")
    second = first.model_copy(update={"copies": "study@2"})
    events = train(second, tmp_path / "second")
    assert isinstance(events[0], Started)
    assert set(events[0].resumed.values()) == {0}
    assert not [event for event in events if isinstance(event, Epoch) and event.replayed]
    assert sorted(path.name for path in (tmp_path / "far").iterdir()) == ["study@1", "study@2"]


class Storage(MemoryFileSystem):
    """A storage that can be made to hang or to fail."""

    protocol = "moody"
    store: ClassVar[dict[str, Any]] = {}
    goes_on = threading.Event()
    failures = 0

    def cat_file(self, path: str, *args: Any, **kwargs: Any) -> bytes:
        self._fail()
        content: bytes = super().cat_file(path, *args, **kwargs)
        return content

    def pipe_file(self, path: str, value: bytes, *args: Any, **kwargs: Any) -> None:
        type(self).goes_on.wait()
        self._fail()
        super().pipe_file(path, value, *args, **kwargs)

    def _fail(self) -> None:
        if type(self).failures:
            type(self).failures -= 1
            raise OSError(errno.EIO, "Input/output error")


fsspec.register_implementation("moody", Storage)


@pytest.fixture
def hangs() -> Iterator[threading.Event]:
    """The storage answers when this is set."""
    Storage.store.clear()
    Storage.goes_on.clear()
    yield Storage.goes_on
    Storage.goes_on.set()


def test_a_storage_that_hangs_stops_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hangs: threading.Event
) -> None:
    monkeypatch.setattr(far_copies, "SILENCE", 0.3)
    monkeypatch.setattr(member_checkpoints, "_AT_CLOSE", 0.1)
    events = train(job("moody://far"), tmp_path)
    assert sum(isinstance(event, Epoch) for event in events) == 12
    assert isinstance(events[-1], Ended)
    (alert,) = [event.text for event in events if isinstance(event, Alert)]
    assert alert.startswith("checkpoints can't be copied to moody://far: no answer for 0.3 s")


def test_the_last_states_are_copied_when_a_slow_storage_answers(tmp_path: Path, hangs: threading.Event) -> None:
    """Of the epochs that ended meanwhile, only the newest; and the job waits for it."""
    spec = job("moody://far")
    events: list[Event] = []

    def tell(event: Event) -> None:
        events.append(event)
        if sum(isinstance(event, Final) for event in events) == 3:
            hangs.set()

    TrainingJob(spec, tmp_path, tell).run()
    assert not [event for event in events if isinstance(event, Alert)]
    for trial in range(3):
        far = UrlStore(f"moody://far/study/{trial_dir(Path(), trial)}")
        assert far.epochs()[-1] == 4
        assert far.epochs() in ([4], [0, 4])
        found, here = far.load(4), CheckpointStore(trial_dir(tmp_path, trial)).load(4)
        assert pack(found)[0] == pack(here)[0]


def test_what_fails_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hangs: threading.Event) -> None:
    hangs.set()
    monkeypatch.setattr(Storage, "failures", 1)
    monkeypatch.setattr(far_copies, "_SHORTEST", 0.01)
    store = CheckpointStore(tmp_path / "00000")
    store.save(1, {"epoch": 1})
    noted: list[BaseException | None] = []
    copies = far_copies.FarCopies(lambda trial: UrlStore(f"moody://far/{trial:05d}"), noted.append)
    copies.put(0, far_copies.Copy(1, lambda: store.read_snapshot(1), ()))
    until(lambda: len(noted) == 2, "the second try")
    assert isinstance(noted[0], OSError)
    assert noted[1] is None
    assert UrlStore("moody://far/00000").load(1) == {"epoch": 1}
    copies.finish()


def test_what_fails_at_the_end_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hangs: threading.Event
) -> None:
    """But not for ever."""
    hangs.set()
    monkeypatch.setattr(far_copies, "_SHORTEST", 0.01)
    store = CheckpointStore(tmp_path / "00000")
    store.save(1, {"epoch": 1})
    for failures, copied in ((2, [1]), (50, [])):
        monkeypatch.setattr(Storage, "failures", failures)
        where = f"moody://far{failures}/00000"
        copies = far_copies.FarCopies(lambda trial, where=where: UrlStore(where), lambda error: None)
        copies._ends = True
        copies.put(0, far_copies.Copy(1, lambda: store.read_snapshot(1), ()))
        copies.finish()
        monkeypatch.setattr(Storage, "failures", 0)
        assert UrlStore(where).epochs() == copied


def test_what_fails_to_be_read_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hangs: threading.Event
) -> None:
    hangs.set()
    spec = job("moody://far")
    train(spec, tmp_path / "here")
    monkeypatch.setattr(Storage, "failures", 1)
    monkeypatch.setattr(member_checkpoints, "_PAUSES", (0.01,))
    again = train(spec, tmp_path / "there")
    assert isinstance(again[0], Started)
    assert set(again[0].resumed.values()) == {4}
    assert not [event for event in again if isinstance(event, Alert)]


def test_a_copy_that_fails_at_the_end_keeps_no_other_one_back(
    monkeypatch: pytest.MonkeyPatch, hangs: threading.Event
) -> None:
    hangs.set()
    bundle = Bundle()
    bundle.add("00001", 1, {"epoch": 1})

    def fail() -> None:
        raise CheckpointError("it is damaged")

    noted: list[BaseException | None] = []
    monkeypatch.setattr(far_copies, "_SHORTEST", 0.01)
    copies = far_copies.FarCopies(lambda trial: UrlStore(f"moody://far/{trial:05d}"), noted.append)
    copies.put(0, far_copies.Copy(1, fail, ()))
    copies.put(1, far_copies.Copy(1, bundle.freeze, ()))
    copies.finish()
    assert UrlStore("moody://far/00001").epochs() == [1]
    assert isinstance(noted[0], CheckpointError)


def test_a_metric_that_is_no_number_spoils_no_ranking() -> None:
    history = [{"val_loss": value} for value in (3.0, math.nan, 1.0, math.inf, 2.0)]
    for direction, expected in (("minimize", [3, 5, 1]), ("maximize", [1, 5, 3])):
        best = Objective(metric="val_loss", direction=direction)
        assert member_checkpoints._ranking(best, history) == expected


def test_what_can_not_be_read_at_present_is_not_thrown_away(tmp_path: Path) -> None:
    """A folder in place of the file gives an error of the file system."""
    spec = job(f"memory://{uuid.uuid4()}").model_copy(update={"checkpoint": CheckpointConfig()})
    whole = train(spec, tmp_path)
    newest = trial_dir(tmp_path, 1) / "epoch-0004.safetensors"
    newest.rename(tmp_path / "away")
    newest.mkdir()
    with pytest.raises(InfrastructureError, match="the checkpoints of trial 1 can't be read at present"):
        train(spec, tmp_path)
    newest.rmdir()
    (tmp_path / "away").rename(newest)
    again = train(spec, tmp_path)
    assert all(event.replayed for event in again if isinstance(event, Epoch))
    for trial in range(3):
        assert outcome(again, tmp_path, trial) == outcome(whole, tmp_path, trial)
