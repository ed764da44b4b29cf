"""Epochs of ranks are files of their trial's folder, as a service carries them, and folders again elsewhere."""

import errno
import json
import os
import shutil
from pathlib import Path

import pytest

from nasflow.resumable.multi_node import MANIFEST, epoch_folder, epochs_in
from nasflow.training.wide.epochs import epoch_files
from nasflow.training.wide.epochs.epoch_files import bring, ranks_folder, remove, show
from nasflow.training_service.files.incoming import CHECKPOINT


def saved(trial: Path, epoch: int, generation: int = 0, text: str = "") -> Path:
    """The folder of an epoch, as ranks save it."""
    folder = epoch_folder(ranks_folder(trial, generation), epoch)
    folder.mkdir(parents=True)
    names = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "plain.bundle"]
    for name in names:
        (folder / name).write_text(f"{name} of {epoch} {text}")
    (folder / MANIFEST).write_text(json.dumps({"files": {name: [1, "hash"] for name in names}}))
    return folder


def files(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if path.is_file()}


def carried(trial: Path, other: Path) -> Path:
    """Another machine's folder of the trial, with what services carry."""
    other.mkdir()
    for name in files(trial):
        assert CHECKPOINT.fullmatch(name)
        shutil.copy(trial / name, other)
    return other


def contents(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


def test_there_and_back(tmp_path: Path) -> None:
    trial = tmp_path / "00007"
    for epoch in (9, 10):
        saved(trial, epoch)
    saved(trial, 8, generation=1)
    show(trial, 0)
    show(trial, 1)
    assert len(files(trial)) == 4, "those of the generation before are no longer needed"
    show(trial, 0)
    assert len(files(trial)) == 12, "and a job that was replaced does not touch those of the next"
    there = carried(trial, tmp_path / "there")
    bring(there)
    assert contents(there / "ranks") == contents(trial / "ranks")
    show(there, 0)
    assert files(there) == files(trial)
    remove(there)
    assert list(there.iterdir()) == []


def test_files_follow_what_is_kept_and_what_is_trained_again(tmp_path: Path) -> None:
    saved(tmp_path, 1)
    saved(tmp_path, 2)
    show(tmp_path, 0)
    shutil.rmtree(epoch_folder(ranks_folder(tmp_path, 0), 1))
    shutil.rmtree(epoch_folder(ranks_folder(tmp_path, 0), 2))
    saved(tmp_path, 2, text="again")
    saved(tmp_path, 3)
    show(tmp_path, 0)
    assert {name.split(".")[0] for name in files(tmp_path)} == {"epoch-0002", "epoch-0003"}
    assert (tmp_path / "epoch-0002.ranks.0.1").read_text().endswith("of 2 again")
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_an_epoch_that_another_machine_has_trained_again_takes_the_place_of_that_here(tmp_path: Path) -> None:
    """Its machine was lost after it had saved epochs that nobody has fetched."""
    trial = tmp_path / "00007"
    saved(trial, 1)
    saved(trial, 2)
    show(trial, 0)
    other = tmp_path / "other"
    saved(other, 2, text="again")
    manifest = epoch_folder(ranks_folder(other, 0), 2) / MANIFEST
    manifest.write_text(manifest.read_text().replace("hash", "HASH"))
    show(other, 0)
    for name in files(other):
        (trial / name).unlink()
        shutil.copy(other / name, trial)
    first = contents(epoch_folder(ranks_folder(trial, 0), 1))
    bring(trial)
    assert contents(epoch_folder(ranks_folder(trial, 0), 2)) == contents(epoch_folder(ranks_folder(other, 0), 2))
    assert contents(epoch_folder(ranks_folder(trial, 0), 1)) == first


@pytest.mark.parametrize(
    "damage",
    [
        *(
            "lacks a file",
            "lacks the manifest",
            "no JSON",
            "no files",
            "a list",
            "numbers",
            "deep",
            "leads out",
            "parent",
        ),
        *("itself", "long", "zero"),
    ],
)
def test_what_did_not_come_whole_is_not_used(damage: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    trial = tmp_path / "00007"
    saved(trial, 1)
    saved(trial, 2)
    show(trial, 0)
    there = carried(trial, tmp_path / "there")
    manifest = there / "epoch-0002.ranks.0.0"
    match damage:
        case "lacks a file":
            (there / "epoch-0002.ranks.0.3").unlink()
        case "lacks the manifest":
            manifest.unlink()
        case "leads out" | "parent" | "itself" | "long" | "zero":
            name = {"leads out": "../../stolen", "parent": "..", "itself": "", "long": 300 * "a", "zero": "a\0"}[damage]
            manifest.write_text(json.dumps({"files": {name: [1, "hash"]}}))
        case _:
            contents = {"no JSON": "{", "no files": "{}", "a list": "[]", "numbers": '{"files": [1, 2]}'}
            manifest.write_text(contents.get(damage) or 100_000 * "[")
    bring(there)
    assert epochs_in(ranks_folder(there, 0)) == [1]
    assert [path.name for path in ranks_folder(there, 0).iterdir()] == ["epoch-0001"]
    assert not (there / "stolen").exists() and not (there / "ranks/stolen").exists()
    if damage != "lacks the manifest":
        assert "what ranks have saved of epoch 2 of there is not complete" in caplog.text


def test_an_epoch_that_was_damaged_here_does_not_keep_others_from_being_shown(tmp_path: Path) -> None:
    (saved(tmp_path, 1) / MANIFEST).write_text("{")
    (saved(tmp_path, 2) / "plain.bundle").unlink()
    saved(tmp_path, 3)
    show(tmp_path, 0)
    assert {f"epoch-0003.ranks.0.{place}" for place in range(4)} <= files(tmp_path)
    assert not {"epoch-0001.ranks.0.0", "epoch-0002.ranks.0.0"} & files(tmp_path)


def test_what_is_there_stays(tmp_path: Path) -> None:
    saved(tmp_path, 1)
    show(tmp_path, 0)
    before = epoch_folder(ranks_folder(tmp_path, 0), 1).stat().st_ino
    bring(tmp_path)
    assert epoch_folder(ranks_folder(tmp_path, 0), 1).stat().st_ino == before


def test_no_hard_links_are_no_fault_and_a_full_disk_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved(tmp_path, 1)
    failing = errno.EPERM

    def link(*_: object) -> None:
        raise OSError(failing, os.strerror(failing))

    monkeypatch.setattr(epoch_files.os, "link", link)
    show(tmp_path, 0)
    assert files(tmp_path) == set()
    failing = errno.ENOSPC
    with pytest.raises(OSError, match="No space left"):
        show(tmp_path, 0)
