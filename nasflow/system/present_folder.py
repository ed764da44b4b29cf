"""The present folder of this process, in which relative paths start. All of its threads share it."""

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path

_changed = threading.Condition()
_inside: list[int] = []  # the threads that work in `_folder`
_folder = ""
_outside: str | None = None


@contextlib.contextmanager
def in_folder(folder: Path) -> Iterator[None]:
    """Work in `folder` in this block. Threads may be in the same folder at once; one that wants another waits for them.

    A thread that is in such a block already does not wait: it could wait for itself. Where the present folder before
    it has been removed, the process stays in `folder`.
    """
    global _folder, _outside  # noqa: PLW0603  # a process has one present folder
    wanted, thread = str(folder), threading.get_ident()
    if thread in _inside:
        before = _present()
        os.chdir(wanted)
        try:
            yield
        finally:
            _go_back(before)
        return
    with _changed:
        _changed.wait_for(lambda: not _inside or _folder == wanted)
        if not _inside:
            _outside = _present()
            os.chdir(wanted)
            _folder = wanted
        _inside.append(thread)
    try:
        yield
    finally:
        with _changed:
            _inside.remove(thread)
            if not _inside:
                _changed.notify_all()
                _go_back(_outside)


def folder_outside() -> Path:
    """Return the present folder of the process outside of such blocks, whichever thread is in one."""
    with _changed:
        return Path(_outside) if _inside and _outside is not None else Path.cwd()


def absolute(path: Path) -> Path:
    """Return an absolute path; a relative one starts in `folder_outside()`, or in the folder that this thread is in."""
    if path.is_absolute():
        return path
    return (Path.cwd() if threading.get_ident() in _inside else folder_outside()) / path


def _present() -> str | None:
    """Return the present folder; None if it has been removed."""
    try:
        return os.getcwd()  # noqa: PTH109  # faster, for models are built by the thousand
    except FileNotFoundError:
        return None


def _go_back(folder: str | None) -> None:
    if folder is not None:
        with contextlib.suppress(FileNotFoundError):
            os.chdir(folder)
