"""Checkpoints: written aside and renamed, the newest kept, the unreadable passed over, nothing unpickled."""

import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from nasflow.errors import CheckpointError
from nasflow.training.checkpoint import CheckpointStore


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
    assert {path.name for path in files} == {"tensors.safetensors", "state.json"}
    assert len(files) == 2 * len(store.epochs())
    assert not any(b"\x80\x04" in path.read_bytes()[:64] for path in files)


class Poison:
    """Leaves a trace where it is unpickled."""

    def __init__(self, trace: Path):
        self.trace = trace

    def __reduce__(self) -> Any:
        return Path.touch, (self.trace,)


@pytest.mark.parametrize("name", ["tensors.safetensors", "state.json"])
@pytest.mark.parametrize("how", ["pickle", "torch.save"])
def test_a_poisoned_file_is_refused_and_not_run(tmp_path: Path, name: str, how: str) -> None:
    store = saved(tmp_path, 1)
    file, trace = store.path(0) / name, tmp_path / "trace"
    if how == "pickle":
        file.write_bytes(pickle.dumps(Poison(trace)))
    else:
        torch.save(Poison(trace), file)
    with pytest.raises(CheckpointError, match="epoch-0000 can't be read"):
        store.load(0)
    assert not trace.exists()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[1, 2",
        "[1, 2]",
        "3",
        '{"w": {"$tensor": "not there"}}',
        '{"w": {"$tensor": []}}',
        '{"w": {"$tuple": 5}}',
        '{"w": {"$dict": [1]}}',
        '{"w": {"$dict": [[[], 1]]}}',
        '{"w": {"$float": null}}',
        '{"w": {"$float": "much"}}',
        "[" * 100_000 + "]" * 100_000,
    ],
)
def test_a_state_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    store = saved(tmp_path, 1)
    (store.path(0) / "state.json").write_text(text)
    with pytest.raises(CheckpointError, match="epoch-0000"):
        store.load(0)


@pytest.mark.parametrize("harm", ["empty tensors", "half a state", "no tensors"])
def test_the_one_before_an_unreadable_one_is_used(tmp_path: Path, harm: str) -> None:
    store = saved(tmp_path, 3)
    newest = store.path(2)
    if harm == "empty tensors":
        (newest / "tensors.safetensors").write_bytes(b"")
    elif harm == "half a state":
        (newest / "state.json").write_bytes((newest / "state.json").read_bytes()[:40])
    else:
        (newest / "tensors.safetensors").unlink()
    loaded = store.load_newest()
    assert loaded is not None
    assert loaded["epoch"] == 1
    assert store.epochs() == [1], "so that the next save of this epoch finds its place free"


def test_if_none_can_be_read_the_last_one_stays_and_is_named(tmp_path: Path) -> None:
    store = saved(tmp_path, 3)
    for epoch in (1, 2):
        (store.path(epoch) / "state.json").write_text("{")
    with pytest.raises(CheckpointError, match="epoch-0001 can't be read"):
        store.load_newest()
    assert store.epochs() == [1]


def test_what_a_killed_process_left_is_removed_by_the_next_save(tmp_path: Path) -> None:
    store = saved(tmp_path, 2)
    left = tmp_path / "00007" / ".epoch-0002.1"
    shutil.copytree(store.path(1), left)
    assert store.epochs() == [0, 1], "it does not count as a checkpoint"
    store.save(2, state(2))
    assert not left.exists()
    assert sorted(entry.name for entry in left.parent.iterdir()) == ["epoch-0001", "epoch-0002"]


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
    assert not list((tmp_path / "00007").glob(".epoch*"))


def test_a_checkpoint_is_complete_when_its_name_appears(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[set[str]] = []
    rename = Path.rename

    def watched(self: Path, target: Path) -> Path:
        assert not target.exists()
        seen.append({entry.name for entry in self.iterdir() if entry.stat().st_size})
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", watched)
    saved(tmp_path, 2)
    assert seen == [{"tensors.safetensors", "state.json"}] * 2
    assert not list((tmp_path / "00007").glob(".*"))
