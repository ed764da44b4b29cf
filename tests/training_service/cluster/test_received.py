"""What nodes send is not trusted."""

import errno
import io
import os
import tempfile
from pathlib import Path

import pytest

from nasflow.config.secret.secret_url import SecretUrl
from nasflow.config.services.storage import ObjectStoreConfig
from nasflow.job.events import Evicted, Final
from nasflow.job.spec import job_dir, stop_mark, trial_dir
from nasflow.testing.training_service import script
from nasflow.training_service.base import JobState, JobStatus
from nasflow.training_service.cluster.runs import ClusterRecords
from nasflow.training_service.cluster.storage import object_store, parcel
from nasflow.training_service.cluster.storage.base import RunOptions
from nasflow.training_service.cluster.storage.object_store import ObjectStore
from nasflow.training_service.cluster.storage.parcel import File, Input, Part
from nasflow.training_service.cluster.storage.received import RefusedError, begin, received, take

SPEC = script("job")
SENDER = "0123456789abcdef"


@pytest.fixture
def run(tmp_path):
    records = ClusterRecords(tmp_path / "root", "test")
    with records.service_lock():
        records.enqueue(SPEC)
        made = records.new_run("job")
    begin(made)
    return made


def send(run, files=(), events=b"", log=b"", *, sender=SENDER, data=None, **fields):
    """Send a part with files of one byte."""
    header = Part(
        **{"events_at": 0, "log_at": 0, **fields},
        events=len(events),
        log=len(log),
        files=[File(paths=paths, size=1) for paths in files],
    )
    place = run.root.parent / "sent"
    parcel.write(place, header, [events, log, *(b"x" for _ in files)])
    if data is not None:
        place.write_bytes(data(place.read_bytes()))
    with place.open("rb") as file:
        take(run, sender, file, SPEC)


def everything(root: Path):
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_a_part_is_here_once(run):
    """Also if this process was killed after it wrote the files, and before it noted that."""
    noted = run.file("received").read_text()
    for _ in range(2):
        run.file("received").write_text(noted)
        send(run, [["trials/00000/epoch-1", "trials/00000/epoch-2"], ["jobs/job/pids"]], b'{"a": 1}\n', b"log\n")
    send(run, [["trials/00000/epoch-3"]], b'{"b": 1}\n', events_at=9, log_at=4, checkpoints=["trials/00000/epoch-3"])
    assert (job_dir(run.root, "job") / "events.jsonl").read_text() == '{"a": 1}\n{"b": 1}\n'
    assert (job_dir(run.root, "job") / "job.log").read_text() == "log\n"
    assert [path.name for path in (run.root / "trials/00000").iterdir()] == ["epoch-3"]
    assert (job_dir(run.root, "job") / "pids").read_text() == "x"
    assert received(run).parts == 2
    assert run.ended() is None


def test_the_lines_of_a_run_follow_those_before(run):
    events = job_dir(run.root, "job") / "events.jsonl"
    events.write_text('{"torn"')
    run.file("received").unlink()
    begin(run)
    send(run, events=b'{"a": 1}\n')
    assert events.read_text() == '{"torn"\n{"a": 1}\n'


@pytest.mark.parametrize(
    "path",
    [
        *("/etc/passwd", "../secret", "jobs/job/../../secret", "jobs/other/pids", "trials/00001/epoch-1"),
        *("trials/00000/stop", "trials/00000/x/epoch-1", "jobs/job/job.json", "jobs/job/events.jsonl", "jobs/job/run"),
        *("jobs/job/run/current", "jobs/job/exit.json", "jobs/job/..", "jobs/job/a\nb", "jobs/job/" + "x" * 300),
        *("test/queue/000000001.job", "jobs/job/folder", "jobs/link/pids", ""),
    ],
)
def test_other_files_are_refused(run, path):
    (run.root / "jobs/job/folder").mkdir()
    before = everything(run.root)
    with pytest.raises(RefusedError):
        send(run, [[path]])
    assert everything(run.root) == before


def test_a_link_leads_nowhere(run, tmp_path):
    (run.root / "trials").symlink_to(tmp_path)
    with pytest.raises(RefusedError):
        send(run, [["trials/00000/epoch-1"]])
    assert not (tmp_path / "00000").exists()


@pytest.mark.parametrize(
    "fields",
    [
        {"events_at": 7},
        {"log_at": 7},
        {"exit": JobState(status=JobStatus.RUNNING)},
        {"checkpoints": ["jobs/job/epoch-1"]},
        {"files": [["trials/00000/epoch-1"]] * 10_001},
    ],
)
def test_other_claims_are_refused(run, fields):
    with pytest.raises(RefusedError):
        send(run, **fields)


def test_another_sender_is_refused(run):
    send(run, events=b"{}\n")
    with pytest.raises(RefusedError, match="another process"):
        send(run, events=b"{}\n", events_at=3, sender="f" * 16)


@pytest.mark.parametrize("cut", [0, 5, 30, -1])
def test_what_is_still_being_written_is_left_alone(run, cut):
    before = everything(run.root)
    with pytest.raises(parcel.UnfinishedError):
        send(run, [["jobs/job/pids"]], data=lambda data: data[:cut])
    assert everything(run.root) == before


@pytest.mark.parametrize("data", [b"\xff" * 100, (2).to_bytes(8, "big") + b"[]", (9).to_bytes(8, "big") + b"not json!"])
def test_what_is_no_part_is_refused(run, data):
    with pytest.raises(RefusedError):
        send(run, data=lambda _: data)


def test_a_file_that_changes_names_keeps_its_content(tmp_path):
    """Two files of one part are two files."""
    aside = tmp_path / "aside"
    for name, content in (("a", b"one"), ("b", b"two")):
        parcel.unpack_file(io.BytesIO(content), File(paths=[name], size=3), aside)
        (tmp_path / name).hardlink_to(aside)
    assert (tmp_path / "a").read_bytes() == b"one"


def test_a_disk_that_is_full_here_is_waited_for(run, tmp_path, monkeypatch, caplog):
    """The part stays in the storage, and is here as soon as there is room."""
    options = RunOptions("module:function", 60.0, run.root / "test" / "controller")
    config = ObjectStoreConfig(url=SecretUrl(f"file://{tmp_path}/storage"), poll_seconds=0.001)
    store = ObjectStore(config, run.root, options)
    store.give(run)
    (bucket,) = (tmp_path / "storage").iterdir()
    part = bucket / run.name / SENDER / "00000000"
    part.parent.mkdir()
    parcel.write(part, Part(events_at=0, log_at=0, events=0, log=4, files=[]), [b"", b"log\n"])

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(object_store, "take", full)
        for _ in range(2):
            store._next = float("-inf")
            store.collect([run])
    assert [record.message for record in caplog.records] == [
        f"[Errno 28] No space left on device: make room for {run.root}; jobs continue, and their results come later"
    ]
    store._next = float("-inf")
    store.collect([run])
    assert (job_dir(run.root, "job") / "job.log").read_text() == "log\n"


def test_the_stop_marks_of_trials_that_have_ended_go_with_their_run(run, tmp_path):
    """On the node, its program has removed them; here they would end the trials early when they are retried."""
    members = [SPEC.members[0].model_copy(update={"trial": trial}) for trial in range(3)]
    spec = SPEC.model_copy(update={"members": members})
    (job_dir(run.root, "job") / "job.json").write_text(spec.model_dump_json())
    for trial in range(4):
        stop_mark(run.root, trial).parent.mkdir(parents=True)
        stop_mark(run.root, trial).touch()
    config = ObjectStoreConfig(url=SecretUrl(f"file://{tmp_path}/storage"), poll_seconds=0.001)
    store = ObjectStore(config, run.root, RunOptions("module:function", 60.0, run.root / "test" / "controller"))
    store.give(run)
    (bucket,) = (tmp_path / "storage").iterdir()
    ends = [
        Final(trial=0, epochs=1, metrics={"loss": 1.0}, stopped_early=True),
        Evicted(trial=1, epoch=1, error="it diverges"),
    ]
    exits = [None, JobState(status=JobStatus.EXITED, exit_code=1)]
    at, folder = 0, bucket / run.name / SENDER
    folder.mkdir()
    for number, (event, end) in enumerate(zip(ends, exits, strict=True)):
        line = event.model_dump_json().encode() + b"\n"
        part = Part(events_at=at, log_at=0, events=len(line), log=0, files=[], exit=end)
        parcel.write(folder / f"{number:08d}", part, [line, b""])
        at += len(line)
    store._next = float("-inf")
    store.collect([run])
    assert run.ended() is not None
    assert [stop_mark(run.root, trial).exists() for trial in range(4)] == [False, False, True, True]


def test_files_that_trials_share_are_sent_once_and_put_together_beside_the_records(run, tmp_path, monkeypatch):
    """Not in /tmp, which may be small, and in memory."""
    members = [SPEC.members[0].model_copy(update={"trial": trial}) for trial in range(3)]
    spec = SPEC.model_copy(update={"members": members})
    (job_dir(run.root, "job") / "job.json").write_text(spec.model_dump_json())
    folders = [trial_dir(run.root, trial) for trial in range(3)]
    for folder in folders:
        folder.mkdir(parents=True)
    (folders[0] / "epoch-0001.safetensors").write_bytes(b"shared")
    (folders[1] / "epoch-0001.safetensors").hardlink_to(folders[0] / "epoch-0001.safetensors")
    (folders[2] / "epoch-0001.safetensors").write_bytes(b"single")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "small"))
    (tmp_path / "small").mkdir()
    written, write = [], parcel.write

    def watched_write(target, *rest):
        written.append(target)
        write(target, *rest)

    monkeypatch.setattr(parcel, "write", watched_write)
    config = ObjectStoreConfig(url=SecretUrl(f"file://{tmp_path}/storage"))
    ObjectStore(config, run.root, RunOptions("module:function", 60.0, run.root / "test" / "controller")).give(run)
    (bucket,) = (tmp_path / "storage").iterdir()
    with (bucket / run.name / "input").open("rb") as file:
        header = parcel.read_header(file, Input)
        file.seek(header.files[0].size, os.SEEK_CUR)
        assert file.read() == b"sharedsingle"
    checkpoint = "trials/{:05d}/epoch-0001.safetensors"
    assert [each.paths for each in header.files[1:]] == [
        [checkpoint.format(0), checkpoint.format(1)],
        [checkpoint.format(2)],
    ]
    assert [target.is_relative_to(run.root / "test") for target in written] == [True]
    assert list((run.root / "test").glob("input-*")) == []
