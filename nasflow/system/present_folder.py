"""The present folder of this process, in which relative paths start. All of its threads share it."""

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path

_changed = threading.Condition()
_inside: list[int] = []  # the threads that work in `_folder`
_folder = _outside = ""


@contextlib.contextmanager
def in_folder(folder: Path) -> Iterator[None]:
    """Work in `folder` in this block. Threads may be in the same folder at once; one that wants another waits for them.

    A thread that is in such a block already does not wait: it could wait for itself.
    """
    global _folder, _outside  # noqa: PLW0603  # a process has one present folder
    wanted, thread = str(folder), threading.get_ident()
    if thread in _inside:
        with contextlib.chdir(wanted):
            yield
        return
    with _changed:
        _changed.wait_for(lambda: not _inside or _folder == wanted)
        if not _inside:
            _outside = os.getcwd()  # noqa: PTH109  # faster, for models are built by the thousand
            os.chdir(wanted)
            _folder = wanted
        _inside.append(thread)
    try:
        yield
    finally:
        with _changed:
            _inside.remove(thread)
            if not _inside:
                os.chdir(_outside)
                _changed.notify_all()
