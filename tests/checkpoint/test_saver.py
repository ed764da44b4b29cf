"""Trials that are saved together: one file for all, with a name for each; no one's failure is another's."""

import errno
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

from nasflow.checkpoint import bundle as bundle_module
from nasflow.checkpoint.bundle import Bundle, Snapshot
from nasflow.checkpoint.packing import pack
from nasflow.checkpoint.saver import JointSaver, Save
from nasflow.checkpoint.store import CheckpointStore
from nasflow.errors import CheckpointError

TRUNK = torch.randn(1000)


def state(trial: int, epoch: int) -> dict[str, Any]:
    """Weights that are rows of a stack, a trunk that all share, and what is a trial's own."""
    stack = torch.arange(400.0).reshape(4, 100) + epoch
    own = {"trial": trial, "epoch": epoch, "history": [{"loss": 0.1 * trial}] * epoch, 0: (None, "é", -0.0)}
    return {**own, "module": {"row": stack[trial % 4], "trunk": TRUNK, "n": torch.tensor(trial * 1000 + epoch)}}


def same(found: Any, expected: Any) -> bool:
    """Also in all bits of their tensors."""
    (values, blocks), (other_values, other_blocks) = pack(found), pack(expected)
    return values == other_values and all(torch.equal(block, other_blocks[name]) for name, block in blocks.items())


class Root:
    """The trials of a folder, and what is saved of them."""

    def __init__(self, folder: Path, keep: int = 2):
        self.folder = folder
        self.saver = JointSaver()
        self._keep = keep

    def store(self, trial: int) -> CheckpointStore:
        return CheckpointStore(self.folder / f"{trial:05d}", self._keep)

    def save(
        self, epoch: int, trials: int = 4, **other: Callable[[], Any]
    ) -> dict[int, tuple[type[BaseException], str]]:
        """Save an epoch of the trials, some with `other` states, by t<trial>; the errors."""
        saves = [
            Save(self.store(trial), epoch, other.get(f"t{trial}", lambda trial=trial: state(trial, epoch)))
            for trial in range(trials)
        ]
        return {trial: (type(error), str(error)) for trial, error in self.saver.save(saves).items()}

    def files(self) -> dict[str, int]:
        """The number of names of each file's, by path."""
        found = [path for path in self.folder.rglob("*") if path.is_file()]
        return {path.relative_to(self.folder).as_posix(): path.stat().st_nlink for path in found}

    def sound(self, epoch: int, *trials: int) -> bool:
        return all(same(self.store(trial).load(epoch), state(trial, epoch)) for trial in trials)


@pytest.fixture
def root(tmp_path: Path) -> Root:
    return Root(tmp_path / "trials")


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The folders of the files that are written, as it goes; each file is synced once, and a folder after it."""
    folders: list[str] = []
    syncs: list[int] = []
    write, sync = Snapshot.write, os.fsync

    def watched(bundle: Snapshot, path: Path) -> None:
        folders.append(path.parents[1].name)
        write(bundle, path)

    def watched_sync(descriptor: int) -> None:
        syncs.append(descriptor)
        sync(descriptor)

    monkeypatch.setattr(Snapshot, "write", watched)
    monkeypatch.setattr(os, "fsync", watched_sync)
    yield folders
    assert len(syncs) == 2 * len(folders)


def test_one_file_for_all(root: Root, written: list[str]) -> None:
    for epoch in range(4):
        assert not root.save(epoch)
    assert written == ["00000"] * 4
    assert root.files() == {f"{t:05d}/epoch-{e:04d}.safetensors": 4 for t in range(4) for e in (2, 3)}
    assert root.store(0).path(3).samefile(root.store(2).path(3))
    assert root.sound(2, 0, 1, 2, 3)
    assert root.sound(3, 0, 1, 2, 3)


def test_one_alone_and_none(root: Root, written: list[str]) -> None:
    assert not root.saver.save([])
    assert not root.save(0, trials=1)
    assert root.files() == {"00000/epoch-0000.safetensors": 1}
    assert root.sound(0, 0)
    assert not root.save(1, trials=2)
    assert written == ["00000"] * 2


def test_what_all_share_is_written_once(root: Root) -> None:
    root.save(1, trials=1)
    root.save(2, trials=24)
    alone, together = (root.store(0).path(epoch).stat().st_size for epoch in (1, 2))
    assert alone > TRUNK.nbytes
    assert together - alone < 23 * 2000 < TRUNK.nbytes * 23


def test_each_drops_its_own_and_the_file_goes_with_the_last(root: Root) -> None:
    root.save(0)
    root.save(1)
    root.save(2, trials=2)
    root.save(3, trials=2)
    first, last = "epoch-0000.safetensors", "epoch-0001.safetensors"
    kept = root.files()
    assert {name: kept[name] for name in kept if name >= "00002"} == {
        f"{trial:05d}/{name}": 2 for trial in (2, 3) for name in (first, last)
    }
    assert root.store(1).epochs() == [2, 3]
    shutil.rmtree(root.folder / "00003")
    assert root.sound(0, 2)
    assert root.sound(1, 2)
    assert root.files()[f"00002/{first}"] == 1


def test_a_file_is_whole_wherever_it_is_brought(root: Root, tmp_path: Path) -> None:
    root.save(3)
    shutil.copytree(root.folder / "00002", tmp_path / "elsewhere" / "00002")
    shutil.rmtree(root.folder)
    assert Root(tmp_path / "elsewhere").sound(3, 2)


def test_an_epoch_saved_again_replaces_it_for_those_who_save_it(root: Root) -> None:
    root.save(1)
    changed = {**state(1, 1), "trial": 77}
    assert not root.save(1, trials=2, t1=lambda: changed)
    assert same(root.store(1).load(1), changed)
    assert root.sound(1, 0, 2, 3)
    assert set(root.files().values()) == {2}


def test_files_are_not_much_larger_than_needed(root: Root, written: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """For they live as long as one of their trials does."""
    one, two = Bundle(), Bundle()
    for trial, bundle in ((0, one), (0, two), (1, two)):
        bundle.add(f"{trial:05d}", 0, state(trial, 0))
    monkeypatch.setattr(bundle_module, "_ENOUGH_BYTES", two._packer.nbytes - one._packer.nbytes)
    assert not root.save(0, trials=7)
    assert written == ["00000", "00003", "00006"]
    assert root.files() == {f"{trial:05d}/epoch-0000.safetensors": 3 if trial < 6 else 1 for trial in range(7)}
    assert root.sound(0, *range(7))


def raise_(error: BaseException) -> Any:
    raise error


def deep() -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for _ in range(5000):
        tree = {"a": tree}
    return tree


BAD: dict[str, tuple[Callable[[], Any], type[BaseException], str]] = {
    "raises": (lambda: raise_(ValueError("no state today")), ValueError, "no state today"),
    "exits": (lambda: raise_(SystemExit(3)), SystemExit, "3"),
    "odd": (lambda: {"a": {"b": object()}}, CheckpointError, "state at '/a/b' is a object"),
    "sparse": (lambda: {"w": torch.eye(2).to_sparse()}, CheckpointError, "state at '/w' is a sparse_coo tensor"),
    "abstract": (
        lambda: {"w": torch.ones(2, device="meta")},
        CheckpointError,
        "state at '/w' is a strided tensor of float32 on meta",
    ),
    "deep": (deep, RecursionError, "maximum recursion depth"),
}


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("trial", [0, 2])
def test_a_state_that_can_not_be_saved_harms_no_other(bad: str, trial: int, root: Root, written: list[str]) -> None:
    make, kind, said = BAD[bad]
    root.save(0)
    errors = root.save(1, **{f"t{trial}": make})
    assert errors.keys() == {trial}
    assert errors[trial][0] is kind
    assert errors[trial][1].startswith(said)
    others = {0, 1, 2, 3} - {trial}
    assert root.sound(1, *others)
    assert root.store(trial).epochs() == [0]
    assert len(written) == 2
    assert len({root.store(other).path(1).stat().st_ino for other in others}) == 1


class Stubborn(torch.Tensor):
    """Looks like any other, until it is to be copied."""

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is torch.Tensor.flatten:
            raise RuntimeError("not me")
        return super().__torch_function__(function, types, args, kwargs)


@pytest.mark.parametrize("trial", [0, 2])
def test_a_tensor_that_fails_when_all_is_written_harms_no_other(trial: int, root: Root) -> None:
    errors = root.save(1, **{f"t{trial}": lambda: {"w": torch.ones(2, 1).as_subclass(Stubborn)}})
    assert errors == {trial: (RuntimeError, "not me")}
    assert root.sound(1, *({0, 1, 2, 3} - {trial}))


@pytest.mark.parametrize("trial", [0, 2])
def test_a_folder_that_can_not_be_written_harms_no_other(trial: int, root: Root) -> None:
    root.save(0)
    shutil.rmtree(root.folder / f"{trial:05d}")
    (root.folder / f"{trial:05d}").touch()
    for epoch in (1, 2):
        errors = root.save(epoch)
        assert errors.keys() == {trial}
        assert issubclass(errors[trial][0], OSError)
        assert root.sound(epoch, *({0, 1, 2, 3} - {trial}))


def test_without_hard_links_each_has_its_own_files(
    root: Root, written: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_links(*_: Any) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_links)
    for epoch in range(3):
        assert not root.save(epoch)
    assert written == ["00000", "00001", "00002", "00003"] * 3, "and nothing is written that is of no use"
    assert root.files() == {f"{t:05d}/epoch-{e:04d}.safetensors": 1 for t in range(4) for e in (1, 2)}
    assert root.sound(2, 0, 1, 2, 3)
    for trial in range(4):
        with safe_open(root.store(trial).path(2), framework="pt") as file:
            assert json.loads(file.metadata()["states"]).keys() == {f"{trial:05d}"}


def test_a_file_with_too_many_links(root: Root, written: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    link = os.link

    def at_most_three(file: Path, target: Path) -> None:
        if file.stat().st_nlink == 3:
            raise OSError(errno.EMLINK, "Too many links")
        link(file, target)

    monkeypatch.setattr(os, "link", at_most_three)
    for epoch in range(2):
        assert not root.save(epoch)
    assert written == ["00000", "00003"] * 2
    assert root.sound(1, 0, 1, 2, 3)


def test_what_can_not_be_written_together_is_written_apart(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that is almost full has room for one of them, say."""
    write = Snapshot.write

    def full(bundle: Snapshot, path: Path) -> None:
        write(bundle, path)
        if path.stat().st_size > 1.5 * TRUNK.nbytes + 1500:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Snapshot, "write", full)
    large = {**state(2, 1), "large": torch.zeros(1000)}
    errors = root.save(1, t2=lambda: large)
    assert errors == {2: (OSError, "[Errno 28] No space left on device")}
    assert root.sound(1, 0, 1, 3)
    assert set(root.files()) == {f"{trial:05d}/epoch-0001.safetensors" for trial in (0, 1, 3)}


def test_where_a_file_is_damaged_all_that_lies_there_is_lost_and_nothing_else(root: Root) -> None:
    root.save(1)
    root.save(2)
    path = root.store(0).path(2)
    data = path.read_bytes()
    place = data.index(state(1, 2)["module"]["row"].numpy().tobytes())
    with path.open("r+b") as file:
        file.seek(place)
        file.write(b"\1")
    assert root.sound(2, 0, 2, 3)
    newest = root.store(1).load_newest()
    assert same(newest, state(1, 1))
    assert root.store(1).epochs() == [1]
    assert root.store(2).epochs() == [1, 2]
    with path.open("r+b") as file:
        file.truncate(len(data) - 1)
    assert [root.store(trial).load_newest()["epoch"] for trial in range(4)] == [1] * 4  # type: ignore[index]


def test_damage_to_what_they_share_is_everyones(root: Root) -> None:
    root.save(1)
    path = root.store(0).path(1)
    place = path.read_bytes().index(TRUNK.numpy().tobytes())
    with path.open("r+b") as file:
        file.seek(place + 17)
        file.write(b"\1\1\1\1")
    for trial in range(4):
        with pytest.raises(CheckpointError, match=r"epoch-0001\.safetensors can't be read: block \d+ is damaged"):
            root.store(trial).load(1)
