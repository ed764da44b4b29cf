"""Checkpoints that can't be read, though they are not damaged, stay; and who only reads changes nothing."""

import multiprocessing
import os
import resource
from pathlib import Path

import psutil
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from nasflow.checkpoint.bundle import NewerCheckpointError
from nasflow.checkpoint.store import CheckpointStore


def saved(folder: Path, epochs: int) -> CheckpointStore:
    store = CheckpointStore(folder / "00007")
    for epoch in range(epochs):
        store.save(epoch, {"epoch": epoch, "w": torch.zeros(2)})
    return store


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def test_what_can_not_be_read_at_present_is_not_called_damaged(tmp_path: Path) -> None:
    """A folder in its place gives an error of the file system, as a stale or broken disk does."""
    store = saved(tmp_path, 3)
    newest = store.path(2).rename(tmp_path / "away")
    store.path(2).mkdir()
    for read in (store.load_newest, store.read_newest, lambda: store.read_snapshot(2)):
        with pytest.raises(OSError, match="No such device"):
            read()
    store.path(2).rmdir()
    newest.rename(store.path(2))
    found = store.load_newest()
    assert found is not None
    assert found["epoch"] == 2


@pytest.mark.parametrize("room", [0.5, 1.5])
def test_without_memory_no_checkpoint_is_called_damaged(tmp_path: Path, room: float) -> None:
    """There is no room for the file, or only to look at its tables."""
    store = CheckpointStore(tmp_path / "00007")
    store.save(0, {"w": torch.zeros(2**25)})
    process = multiprocessing.get_context("fork").Process(target=_read_within, args=(store, int(room * 2**27)))
    process.start()
    process.join(60)
    assert process.exitcode == 0
    assert store.epochs() == [0]


def _read_within(store: CheckpointStore, room: int) -> None:
    limit = psutil.Process().memory_info().vms + room
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    with pytest.raises((OSError, MemoryError), match="memory"):
        store.load_newest()
    os._exit(0)


def test_a_checkpoint_of_a_newer_version_stays(tmp_path: Path) -> None:
    store = saved(tmp_path, 2)
    with safe_open(store.path(1), framework="pt") as file:
        tables, flat = file.metadata(), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    save_file(flat, store.path(1), {**tables, "units": "{}"})
    for read in (store.load_newest, store.read_newest):
        with pytest.raises(NewerCheckpointError, match=r"epoch-0001\.safetensors was written by a newer nasflow"):
            read()
    assert store.epochs() == [0, 1]


def test_reading_changes_nothing(tmp_path: Path) -> None:
    """Another process may be writing there."""
    store = saved(tmp_path, 3)
    store.path(2).write_bytes(b"")
    before = names(tmp_path / "00007")
    found = CheckpointStore(tmp_path / "00007", generation=1).read_newest()
    assert found is not None
    assert found["epoch"] == 1
    assert names(tmp_path / "00007") == before
