"""Checkpoints: written aside and renamed, the newest kept, the unreadable passed over, nothing unpickled."""

import json
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load, load_file, save, save_file

from nasflow.checkpoint.bundle import Bundle
from nasflow.checkpoint.store import CheckpointStore
from nasflow.errors import CheckpointError


def state(epoch: int) -> dict[str, Any]:
    return {"epoch": epoch, "module": {"w": torch.full((2,), float(epoch))}, "betas": (0.9, 0.99), 0: None}


def saved(folder: Path, epochs: int, keep: int = 2) -> CheckpointStore:
    store = CheckpointStore(folder / "00007", keep)
    for epoch in range(epochs):
        store.save(epoch, state(epoch))
    return store


@pytest.mark.parametrize("keep", [1, 2, 3])
def test_the_newest_are_kept(tmp_path: Path, keep: int) -> None:
    store = saved(tmp_path, 5, keep)
    assert store.epochs() == [0, 1, 2, 3, 4][-keep:]
    newest = store.load_newest()
    assert newest is not None
    assert newest.keys() == state(4).keys()
    assert newest["betas"] == (0.9, 0.99)
    assert torch.equal(newest["module"]["w"], torch.full((2,), 4.0))


def test_those_may_read_them_who_may_read_other_files(tmp_path: Path) -> None:
    (tmp_path / "other").touch()
    assert saved(tmp_path, 1).path(0).stat().st_mode == (tmp_path / "other").stat().st_mode


def test_order_is_by_number_past_four_digits(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep=2)
    for epoch in (9998, 9999, 10000):
        store.save(epoch, state(epoch))
    assert store.epochs() == [9999, 10000]


def test_there_may_be_none(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "nothing")
    assert store.epochs() == []
    assert store.load_newest() is None
    with pytest.raises(CheckpointError, match="epoch-0003"):
        store.load(3)


def test_only_tensors_and_json_lie_on_disk(tmp_path: Path) -> None:
    store = saved(tmp_path, 3)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert sorted(path.name for path in files) == ["epoch-0001.safetensors", "epoch-0002.safetensors"]
    assert len(files) == len(store.epochs())
    for path in files:
        assert not any(mark in path.read_bytes() for mark in (b"\x80\x04", b"PK\x03\x04"))
        assert set(load_file(path)) == {"float32.cpu", "uint8.cpu"}


class Poison:
    """Leaves a trace where it is unpickled."""

    def __init__(self, trace: Path):
        self.trace = trace

    def __reduce__(self) -> Any:
        return Path.touch, (self.trace,)


@pytest.mark.parametrize("how", ["pickle", "torch.save"])
def test_a_poisoned_file_is_refused_and_not_run(tmp_path: Path, how: str) -> None:
    store = saved(tmp_path, 1)
    file, trace = store.path(0), tmp_path / "trace"
    if how == "pickle":
        file.write_bytes(pickle.dumps(Poison(trace)))
    else:
        torch.save(Poison(trace), file)
    with pytest.raises(CheckpointError, match=r"epoch-0000\.safetensors can't be read"):
        store.load(0)
    assert not trace.exists()


def rewritten(store: CheckpointStore, epoch: int, text: bytes) -> None:
    """Put another JSON into a checkpoint, with its right checksum."""
    text = b'{"trial":"%s","epoch":%d,"state":%s}' % (store.trial.encode(), epoch, text)
    bundle = Bundle()
    bundle.add(store.trial, epoch, {"w": torch.zeros(2)})
    name = bundle._states[store.trial] = bundle._packer.keep(torch.frombuffer(bytearray(text), dtype=torch.uint8))
    assert name
    bundle.freeze().write(store.path(epoch))


@pytest.mark.parametrize(
    "text",
    [
        " ",
        "[1, 2",
        "[1, 2]",
        "3",
        '{"w": {"$tensor": "not there"}}',
        '{"w": {"$tensor": []}}',
        '{"w": {"$tensor": ["9", 0, [2]]}}',
        '{"w": {"$tensor": [0, 0, [2]]}}',
        '{"w": {"$tensor": [[], 0, [2]]}}',
        '{"w": {"$tensor": ["0", 0, [3]]}}',
        '{"w": {"$tensor": ["0", 0, [-1]]}}',
        '{"w": {"$tensor": ["0", 1, [2]]}}',
        '{"w": {"$tensor": ["0", "0", [2]]}}',
        '{"w": {"$tensor": ["0", 0, 2]}}',
        '{"w": {"$tensor": ["0", 0, [2, "1"]]}}',
        '{"w": {"$tuple": 5}}',
        '{"w": {"$dict": [1]}}',
        '{"w": {"$dict": [[[], 1]]}}',
        '{"w": {"$float": null}}',
        '{"w": {"$float": "much"}}',
        "[" * 100_000 + "]" * 100_000,
    ],
    ids=lambda text: text[:40],
)
def test_a_state_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    store = saved(tmp_path, 1)
    rewritten(store, 0, text.encode())
    with pytest.raises(CheckpointError, match="epoch-0000"):
        store.load(0)


@pytest.mark.parametrize(
    "metadata",
    [
        None,
        {},
        {"blocks": "{}", "states": "{}"},
        {"blocks": "[]", "states": '{"00007": "0"}'},
        {"blocks": "{}", "states": '["00007"]'},
        {"blocks": "{}", "states": "{"},
        {"blocks": '{"0": ["w", 0, 2]}', "states": '{"00007": "0"}'},
        {"blocks": '{"0": ["x", 0, 2, 0]}', "states": '{"00007": "0"}'},
        {"blocks": '{"0": ["w", 1, 9, 0]}', "states": '{"00007": "0"}'},
        {"blocks": '{"0": ["w", 0, 2, 0]}', "states": '{"00007": "0"}'},
    ],
    ids=str,
)
def test_a_file_that_is_no_checkpoint_is_refused(tmp_path: Path, metadata: dict[str, str] | None) -> None:
    store = saved(tmp_path, 1)
    save_file({"w": torch.zeros(2)}, store.path(0), metadata)
    with pytest.raises(CheckpointError, match=r"epoch-0000\.safetensors can't be read"):
        store.load(0)


def test_another_trials_checkpoint_is_refused(tmp_path: Path) -> None:
    store = saved(tmp_path, 1)
    other = CheckpointStore(tmp_path / "00008")
    store.path(0).rename(tmp_path / "file")
    (tmp_path / "00008").mkdir()
    (tmp_path / "file").rename(other.path(0))
    with pytest.raises(CheckpointError, match="it has no state of '00008'"):
        other.load(0)


@pytest.mark.parametrize("harm", ["empty", "half of it", "its last byte missing", "a byte too many", "zeros", "gone"])
def test_the_one_before_an_unreadable_one_is_used(tmp_path: Path, harm: str) -> None:
    store = saved(tmp_path, 3)
    newest = store.path(2)
    data = newest.read_bytes()
    if harm == "gone":
        newest.unlink()
        newest.symlink_to(tmp_path / "nowhere")
    else:
        newest.write_bytes(
            {
                "empty": b"",
                "half of it": data[: len(data) // 2],
                "its last byte missing": data[:-1],
                "a byte too many": data + b"0",
                "zeros": bytes(len(data)),
            }[harm]
        )
    loaded = store.load_newest()
    assert loaded is not None
    assert loaded["epoch"] == 1
    assert store.epochs() == [1], "so that the next save of this epoch finds its place free"


def test_any_byte_that_changes_is_noticed(tmp_path: Path) -> None:
    """Be it of a tensor, of the state's JSON or of the file's header: nothing else than what was saved is loaded."""
    store = saved(tmp_path, 1)
    data = store.path(0).read_bytes()
    expected = store.load(0)
    for place in range(len(data)):
        store.path(0).write_bytes(data[:place] + bytes([data[place] ^ 4]) + data[place + 1 :])
        try:
            found = store.load(0)
        except CheckpointError:
            continue
        assert str(found) == str(expected), f"byte {place} of {len(data)}"


def test_if_none_can_be_read_all_stay_and_the_oldest_is_named(tmp_path: Path) -> None:
    store = saved(tmp_path, 3)
    for epoch in (1, 2):
        store.path(epoch).write_text("{")
    with pytest.raises(CheckpointError, match=r"epoch-0001\.safetensors can't be read"):
        store.load_newest()
    assert store.epochs() == [1, 2]


def test_what_a_killed_process_left_is_removed_by_the_next_save(tmp_path: Path) -> None:
    store = saved(tmp_path, 2)
    left = tmp_path / "00007" / ".aside-abc"
    left.mkdir()
    (left / "epoch-0002.safetensors").write_bytes(store.path(1).read_bytes()[:50])
    assert store.epochs() == [0, 1], "it does not count as a checkpoint"
    CheckpointStore(left.parent).save(2, state(2))  # in the process that came in its place
    assert not left.exists()
    assert names(left.parent) == ["epoch-0001.safetensors", "epoch-0002.safetensors"]


def test_checkpoints_that_others_removed_are_not_missed(tmp_path: Path) -> None:
    store = saved(tmp_path, 3)
    store.path(1).unlink()
    store.save(3, state(3))
    store.drop(3)
    store.save(4, state(4))
    assert names(tmp_path / "00007") == ["epoch-0002.safetensors", "epoch-0004.safetensors"]


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def test_folders_of_an_older_layout_are_as_nothing(tmp_path: Path) -> None:
    old = tmp_path / "00007" / "epoch-0004"
    for folder in (old, old.with_name(".epoch-0005.1")):
        folder.mkdir(parents=True)
        (folder / "tensors.safetensors").write_bytes(save({"w": torch.zeros(2)}))
    store = CheckpointStore(tmp_path / "00007")
    assert store.epochs() == []
    assert store.load_newest() is None
    for epoch in range(3):
        store.save(epoch, state(epoch))
    assert store.epochs() == [1, 2]
    assert old.is_dir()


def test_saving_again_replaces(tmp_path: Path) -> None:
    store = saved(tmp_path, 2)
    store.save(1, {**state(1), "epoch": 77})
    assert store.load(1)["epoch"] == 77
    assert store.epochs() == [0, 1]


def test_a_failed_save_leaves_the_old_ones_alone(tmp_path: Path) -> None:
    store = saved(tmp_path, 2)
    with pytest.raises(CheckpointError, match="state at '/odd'"):
        store.save(2, {"odd": object()})
    assert store.epochs() == [0, 1]
    assert names(tmp_path / "00007") == ["epoch-0000.safetensors", "epoch-0001.safetensors"]


def test_a_checkpoint_is_complete_when_its_name_appears(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    synced: list[int] = []
    replace, fsync = Path.replace, os.fsync

    def watched(self: Path, target: Path) -> Path:
        assert not target.exists()
        assert self.stat().st_ino == synced.pop()
        seen.append(json.loads(load_metadata(self)["states"]).keys() == {"00007"})
        return replace(self, target)

    def watched_sync(descriptor: int) -> None:
        fsync(descriptor)
        synced.append(os.fstat(descriptor).st_ino)

    monkeypatch.setattr(Path, "replace", watched)
    monkeypatch.setattr(os, "fsync", watched_sync)
    saved(tmp_path, 2)
    assert seen == [True, True]
    assert names(tmp_path / "00007") == ["epoch-0000.safetensors", "epoch-0001.safetensors"]


def load_metadata(path: Path) -> dict[str, str]:
    assert load(path.read_bytes())
    with safe_open(path, framework="pt") as file:
        metadata: dict[str, str] = file.metadata()
    return metadata


def test_a_state_loaded_does_not_change_with_its_file(tmp_path: Path) -> None:
    store = saved(tmp_path, 2)
    loaded = store.load(1)
    with store.path(1).open("r+b") as file:
        file.write(bytes(store.path(1).stat().st_size))
    loaded["module"]["w"] += 1
    assert torch.equal(loaded["module"]["w"], torch.full((2,), 2.0))
