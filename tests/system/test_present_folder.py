"""Threads that work in a folder do not see that of another."""

import contextlib
import os
import threading
from pathlib import Path

import pytest

from nasflow.system.present_folder import in_folder


def test_threads_share_a_folder_and_wait_for_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    one.mkdir()
    other.mkdir()
    monkeypatch.chdir(tmp_path)
    shares, leave, seen = threading.Event(), threading.Event(), dict[str, Path]()

    def share() -> None:
        with in_folder(one):
            shares.set()
            leave.wait(10)
            seen["shared"] = Path.cwd()

    def wait() -> None:
        with in_folder(other):
            seen["waited"] = Path.cwd()

    threads = [threading.Thread(target=share), threading.Thread(target=wait)]
    with in_folder(one):
        for thread in threads:
            thread.start()
        assert shares.wait(10)
        with in_folder(other), in_folder(one):  # a thread does not wait for itself
            assert Path.cwd() == one
        assert Path.cwd() == one and not seen
    leave.set()
    for thread in threads:
        thread.join(10)
    assert seen == {"shared": one, "waited": other}
    assert Path.cwd() == tmp_path


def test_a_folder_that_is_gone_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileNotFoundError), in_folder(tmp_path / "gone"):
        pass
    with pytest.raises(ZeroDivisionError), in_folder(tmp_path):
        raise ZeroDivisionError
    with in_folder(tmp_path.parent):
        assert Path.cwd() == tmp_path.parent
    assert Path.cwd() == tmp_path


@pytest.mark.parametrize("when", ["before", "inside"])
@pytest.mark.parametrize("outer", [False, True], ids=["alone", "nested"])
def test_a_present_folder_that_is_removed_keeps_no_one(
    when: str, outer: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither this thread, nor one that waits for it."""
    gone, other = tmp_path / "gone", tmp_path / "other"
    gone.mkdir()
    other.mkdir()
    monkeypatch.chdir(tmp_path)
    seen: list[Path] = []

    def wait() -> None:
        with in_folder(other):
            seen.append(Path.cwd())

    waiter = threading.Thread(target=wait, daemon=True)
    with in_folder(gone) if outer else contextlib.nullcontext():
        os.chdir(gone)
        if when == "before":
            gone.rmdir()
        with in_folder(tmp_path):
            waiter.start()
            if when == "inside":
                gone.rmdir()
            assert Path.cwd() == tmp_path and not seen
        if outer:  # else the thread that waited may be in its folder by now
            assert Path.cwd() == tmp_path
    waiter.join(10)
    assert seen == [other]
    assert Path.cwd() == tmp_path
