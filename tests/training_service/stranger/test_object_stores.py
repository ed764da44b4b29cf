"""An object store and disks as strangers have them: nothing is lost, and no trial is blamed for what is wrong."""

import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nasflow.config.secret.secret_url import SecretUrl
from nasflow.config.services.storage import ObjectStoreConfig
from nasflow.errors import ServiceError
from nasflow.system.small_files import write_aside
from nasflow.testing.training_service import epochs, finish, script, until
from nasflow.training_service.base import JobState, JobStatus
from nasflow.training_service.cluster.runs import Run
from nasflow.training_service.cluster.storage.bucket import Bucket
from nasflow.training_service.cluster.storage.sender import Sender
from nasflow.training_service.ship.code_dir import CodeArchive
from tests.faults.small_disks import no_small_disk
from tests.object_store.s3 import on_nodes
from tests.training_service.cluster import nodes

pytestmark = pytest.mark.long

Open = Callable[..., nodes.Nodes]


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "code").mkdir()
    monkeypatch.chdir(tmp_path / "code")
    return tmp_path / "cluster"


@pytest.fixture
def open_service(s3: Any, cluster: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Open]:
    roots = {tmp_path / "root"}

    def open_it(root: Path = tmp_path / "root", **options: Any) -> nodes.Nodes:
        roots.add(root)
        monkeypatch.setenv(nodes.SETTINGS, nodes.settings(cluster, on_nodes(s3.storage()) | options))
        return nodes.make(root, 1)

    yield open_it
    for root in roots:
        nodes.make(root, 1).cleanup()
    assert s3.objects() == []


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 4 MB."""
    folder = tmp_path / "small"
    folder.mkdir()
    if why := no_small_disk():
        pytest.skip(why)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", folder], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def ended(service: nodes.Nodes, name: str) -> JobState:
    return finish(service, service.submit(script(name, ["epoch", 1])), 60)


def release(cluster: Path, name: str) -> None:
    for job in cluster.glob("nasflow-*/run-*/jobs/*"):
        (job.parents[1] / name).touch()


def fill(folder: Path) -> Path:
    """Fill a disk, and return the file to remove."""
    ballast = folder / "ballast"
    with ballast.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            return ballast


def test_code_that_a_rule_of_the_bucket_has_removed(open_service: Open, s3: Any) -> None:
    """The job that lacks it says so; those after it get it again."""
    service = open_service()
    assert ended(service, "first").exit_code == 0
    for key in s3.objects():
        if "/code/" in key:
            s3.client.delete_object(Bucket="bucket", Key=key)
    states = [ended(service, "second") for _ in range(2)]
    assert states[-1].exit_code == 0
    if states[0].status is JobStatus.LOST:
        assert ".tar.gz is no longer in the storage; let no other program, and no rule for old" in states[0].reason


def test_code_that_changes_while_it_is_packed(
    open_service: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a log does. Jobs get what was packed."""
    (tmp_path / "code" / "growing.log").write_text("1\n")
    write = CodeArchive.write

    def changed(self: CodeArchive, target: Any) -> str:
        (tmp_path / "code" / "growing.log").write_text("1\n2\n")
        return write(self, target)

    monkeypatch.setattr(CodeArchive, "write", changed)
    assert ended(open_service(), "job").exit_code == 0


def test_a_scratch_that_nodes_can_not_write(open_service: Open, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    scratch = f"{tmp_path}/file/scratch"
    service = open_service(scratch=scratch)
    for number in range(3):
        state = ended(service, f"job-{number}")
        assert state.status is JobStatus.LOST
        assert f"training_service.storage.scratch: can't write below {scratch} on the node (Not a dir" in state.reason
    with pytest.raises(
        ServiceError, match=r"3 jobs in a row .* before nasflow began there; of the last: .*scratch: can"
    ):
        ended(service, "last")


def test_a_full_scratch_delays_what_is_sent(small_disk: Path, tmp_path: Path) -> None:
    """The part needs as much room again as what it is made of."""
    config = ObjectStoreConfig(url=SecretUrl(f"file://{tmp_path}/store"))
    run = Run(small_disk, "job", "token")
    folder = small_disk / "jobs" / "job"
    folder.mkdir(parents=True)
    (folder / "events.jsonl").write_bytes(b"{}\n" * 100_000)
    sender = Sender(Bucket(config, {"url": config.url.get_secret_value()}, "study"), "place", run, script("job"), 0.0)
    ballast = fill(small_disk)
    sender.send_last(JobState(status=JobStatus.EXITED, exit_code=0))
    assert not sender.final_sent
    ballast.unlink()
    until(lambda: sender.send_last(JobState(status=JobStatus.EXITED, exit_code=0)) or sender.final_sent, "the part")
    [part] = (tmp_path / "store" / "study" / "place").iterdir()
    assert part.stat().st_size > 300_000


def test_files_that_are_renamed_while_they_are_sent(tmp_path: Path) -> None:
    """As each file is that is written whole."""
    run = Run(tmp_path, "job", "token")
    folder = tmp_path / "jobs" / "job"
    folder.mkdir(parents=True)
    over = threading.Event()

    def write() -> None:
        while not over.is_set():
            write_aside(folder / "report.json", "{}")

    writer = threading.Thread(target=write)
    writer.start()
    try:
        sender = Sender(None, "place", run, script("job"), 0.0)  # type: ignore[arg-type]  # nothing is sent
        for _ in range(2000):
            list(sender._new_files())
    finally:
        over.set()
        writer.join()


def test_what_else_is_in_the_bucket(open_service: Open, s3: Any, cluster: Path) -> None:
    """Objects that a console or another program makes beside a run's own."""
    service = open_service()
    handle = service.submit(script("job", ["epoch", 1], ["wait", "go"]))
    until(lambda: epochs(service, handle), "first epoch", 60)
    [control] = [key for key in s3.objects() if key.endswith("/control")]
    run = control.removesuffix("/control")
    sender = "0" * 16
    others = (
        f"{run}/",
        f"{run}/{sender}/",
        f"{run}/{sender}/0000000a",
        f"{run}/ü b/x",
        f"{run}/notes.txt",
        f"{run}.txt",
    )
    for key in others:
        s3.client.put_object(Bucket="bucket", Key=key, Body=b"hello")
    release(cluster, "go")
    assert finish(service, handle, 60).exit_code == 0
    assert epochs(service, handle) == [(1, False)]
    service.cleanup()
    assert set(s3.objects()) <= set(others[:2]), "what a console shows as empty folders"
    for key in s3.objects():
        s3.client.delete_object(Bucket="bucket", Key=key)


def test_two_studies_of_the_same_name_in_one_bucket(open_service: Open, s3: Any, cluster: Path, tmp_path: Path) -> None:
    """The end of one leaves the other's jobs alone."""
    mine, theirs = (open_service(tmp_path / place / "study") for place in ("mine", "theirs"))
    handles = [each.submit(script("job", ["epoch", 1], ["wait", "go"])) for each in (mine, theirs)]
    for service, handle in zip((mine, theirs), handles, strict=True):
        until(lambda service=service, handle=handle: epochs(service, handle), "first epoch", 60)
    theirs.cleanup()
    release(cluster, "go")
    assert finish(mine, handles[0], 60).exit_code == 0
