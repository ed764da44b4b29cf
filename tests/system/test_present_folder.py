"""Threads that work in a folder do not see that of another."""

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
