"""An epoch counts when every node has saved it; checkpoints at URLs."""

import errno
import json
import os
import uuid
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from nasflow.checkpoint.url_store import UrlStore
from nasflow.errors import CheckpointError
from nasflow.resumable.checkpoint_manager import CheckpointManager, MultiNodeCheckpointManager
from nasflow.resumable.job import Call, EpochLimit, Job, JobRunner
from tests.flows.forked_commands import ForkedProgram, start_forked
from tests.resumable import counting_job
from tests.resumable.counting_job import add, begin, die_at, end

NODES = ["a", "b", "c"]
INIT, EPOCH = [Call(begin, start=0)], [Call(add, amount=3)]


@pytest.fixture(params=["folder", "file://", "memory://"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Path | str:
    if request.param == "folder":
        return tmp_path / "shared"
    return f"memory://{uuid.uuid4()}" if request.param == "memory://" else f"file://{tmp_path}/shared"


def node(place: Path | str, name: str, **options: Any) -> MultiNodeCheckpointManager:
    return MultiNodeCheckpointManager(place, ["total", "layer"], node=name, nodes=NODES, **options)


def run(place: Path | str, name: str, epochs: int) -> dict[str, Any]:
    manager = node(place, name)
    state = JobRunner(Job(INIT, EPOCH, stop=[EpochLimit(epochs)]), manager).run()
    manager.close()
    return state


def test_the_newest_epoch_that_all_have(place: Path | str) -> None:
    for name, epochs in zip(NODES, (5, 3, 4), strict=True):
        run(place, name, epochs)
    assert node(place, "b").epochs() == [2, 3]
    assert run(place, "b", 6)["log"] == ["init", "epoch 4", "epoch 5", "epoch 6"]


def test_none_as_long_as_a_node_has_saved_nothing(place: Path | str) -> None:
    run(place, "a", 2)
    assert node(place, "a").epochs() == []
    assert run(place, "a", 1)["log"] == ["init", "epoch 1"]


def test_old_ones_go_when_newer_ones_count(place: Path | str) -> None:
    managers = {name: node(place, name, keep=2) for name in NODES}
    states = {name: {"total": 0, "layer": 0} for name in NODES}
    for epoch in range(6):
        for name in NODES:
            managers[name].save(states[name], epoch)
            managers[name].wait()
        assert managers["a"].epochs()[-1] == epoch
    kept = {name: node(place, name)._store.epochs() for name in NODES}
    assert kept == {"a": [3, 4, 5], "b": [3, 4, 5], "c": [4, 5]}, "when a saves, the others have not yet"


def test_an_epoch_that_one_node_can_not_read_is_passed_over_by_all(tmp_path: Path) -> None:
    for name in NODES:
        run(tmp_path, name, 3)
    damaged = tmp_path / "b" / "epoch-0003.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:-1])
    states: list[dict[str, Any]] = [{}, {}, {}]
    assert [node(tmp_path, name).load(state) for name, state in zip(NODES, states, strict=True)] == [2, 2, 2]
    for name in NODES:
        for path in (tmp_path / name).iterdir():
            path.write_text("")
    with pytest.raises(CheckpointError, match=r"no epoch of \[2\] can be read on all of the nodes"):
        node(tmp_path, "a").load({})


def test_nodes_that_are_processes_of_which_one_is_killed(tmp_path: Path) -> None:
    job, deadly = (
        Job(INIT, [*steps, *EPOCH], [end], [EpochLimit(4)]).compile() for steps in ([], [Call(die_at, epoch=3)])
    )

    def start(name: str, how: Any) -> ForkedProgram:
        file = tmp_path / f"{name}.json"
        file.write_text(how.model_dump_json())
        arguments = [str(file), str(tmp_path / "shared"), str(tmp_path / name), name, *NODES]
        return start_forked(["python", counting_job.__file__, *arguments], Path.cwd(), os.environ)

    codes = [process.wait() for process in (start("a", job), start("b", deadly), start("c", job))]
    assert codes[1] < 0 == codes[0] == codes[2]
    assert node(tmp_path / "shared", "a").epochs()[-1] <= 2
    for name in NODES:  # one after the other: each finds the same epoch
        assert node(tmp_path / "shared", name).load({}) == node(tmp_path / "shared", "a").epochs()[-1]
    assert [process.wait() for process in [start(name, job) for name in NODES]] == [0, 0, 0]
    assert {(tmp_path / f"{name}.end").read_text() for name in NODES} == {"4 12 12.0"}


def test_who_is_no_node() -> None:
    with pytest.raises(ValueError, match="node 'x' is none of the nodes"):
        MultiNodeCheckpointManager("here", [], node="x", nodes=NODES)


@pytest.mark.parametrize("harm", ["cut", "flip", "no manifest", "half a manifest", "no file"])
def test_a_file_that_is_not_what_its_manifest_says(harm: str, tmp_path: Path) -> None:
    url = f"file://{tmp_path}/far/00007"
    manager = CheckpointManager(url, ["total"], keep=9)
    for epoch in (1, 2):
        manager.save({"total": epoch}, epoch)
    manager.close()
    file, manifest = (tmp_path / "far" / "00007" / f"epoch-0002.{ending}" for ending in ("safetensors", "json"))
    data = file.read_bytes()
    assert json.loads(manifest.read_text())["size"] == len(data)
    match harm:
        case "cut":
            file.write_bytes(data[:-3])
        case "flip":
            file.write_bytes(data[:-9] + bytes([data[-9] ^ 4]) + data[-8:])
        case "no manifest":
            manifest.unlink()
        case "half a manifest":
            manifest.write_bytes(manifest.read_bytes()[:20])
        case "no file":
            file.unlink()
    state: dict[str, Any] = {}
    assert CheckpointManager(url, ["total"]).load(state) == 1
    assert state == {"total": 1}


def test_at_a_url_as_in_a_folder(tmp_path: Path) -> None:
    url = f"memory://{uuid.uuid4()}/00003"
    store = UrlStore(url, keep=2)
    assert store.epochs() == []
    assert store.load_newest() is None
    for epoch in range(5):
        store.save(epoch, {"epoch": epoch, 1: (None, float("inf"))}, ranking=[1, 0])
    assert store.epochs() == [1, 3, 4]
    assert store.load_newest() == {"epoch": 4, 1: (None, float("inf"))}
    with pytest.raises(CheckpointError, match="epoch-0002"):
        store.load(2)
    files = fsspec.filesystem("memory").ls(url, detail=False)
    assert len(files) == 6


def test_what_a_replaced_job_saves_at_a_url_does_not_count() -> None:
    url = f"memory://{uuid.uuid4()}/00003"
    old, new = UrlStore(url, keep=1), UrlStore(url, keep=2, generation=1)
    old.save(1, {"epoch": 1})
    assert new.load_newest() == {"epoch": 1}
    for epoch in (2, 3):
        new.save(epoch, {"epoch": epoch})
    for epoch in (2, 3, 4):
        old.save(epoch, {"epoch": 99})
    assert [store.load_newest() for store in (old, new)] == [{"epoch": 3}] * 2
    assert new.epochs() == [2, 3]
    new.save(4, {"epoch": 4})
    assert new.epochs() == [3, 4]
    assert len(fsspec.filesystem("memory").ls(url, detail=False)) == 4


class Unreachable(MemoryFileSystem):
    """A storage that does not answer while `is_away`."""

    protocol = "unreachable"
    store: ClassVar[dict[str, Any]] = {}
    is_away = False

    def cat_file(self, path: str, *args: Any, **kwargs: Any) -> bytes:
        if type(self).is_away:
            raise ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")
        return super().cat_file(path, *args, **kwargs)


fsspec.register_implementation("unreachable", Unreachable)


def test_a_storage_that_does_not_answer_loses_no_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"unreachable://{uuid.uuid4()}/00007"
    manager = CheckpointManager(url, ["total"], keep=9)
    for epoch in (1, 2):
        manager.save({"total": epoch}, epoch)
    manager.close()
    state: dict[str, Any] = {}
    with monkeypatch.context() as patch:
        patch.setattr(Unreachable, "is_away", True)
        with pytest.raises(ConnectionResetError):
            CheckpointManager(url, ["total"]).load(state)
    assert state == {}
    assert CheckpointManager(url, ["total"]).load(state) == 2
