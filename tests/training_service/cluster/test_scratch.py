"""Folders for runs on a worker's own disk: each run's is there while it runs, and what killed runs leave is removed."""

import os
from pathlib import Path

from nasflow.training_service.cluster.storage.scratch import own_folder


def test_a_running_ones_folder_stays(tmp_path: Path) -> None:
    with own_folder(str(tmp_path)) as first, own_folder(str(tmp_path)) as second:
        assert first.is_dir() and second.is_dir()
    assert list((tmp_path / f"nasflow-{os.geteuid()}").iterdir()) == []


def test_what_killed_runs_have_left_is_removed(tmp_path: Path) -> None:
    """A lock that nobody holds with its folder, and a folder into which a program wrote after it was removed."""
    with own_folder(str(tmp_path)) as folder:
        place = folder.parent
    (place / "run-1").mkdir()
    (place / "run-1.lock").touch()
    (place / "run-2" / "jobs").mkdir(parents=True)
    (place / "run-2" / "jobs" / "exit.json").touch()
    with own_folder(str(tmp_path)) as folder:
        assert {path.name for path in place.iterdir()} == {folder.name, f"{folder.name}.lock"}
