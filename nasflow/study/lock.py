"""One controller a study: a lock on a file in the study's folder, which the kernel frees when its owner dies."""

import fcntl
import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nasflow.errors import StudyError


@contextmanager
def study_lock(directory: Path) -> Iterator[None]:
    """Hold the study whose folder is `directory` (made if missing).

    Raises:
        StudyError: another controller holds it; its process and host are named.
    """
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "controller.lock"
    with path.open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StudyError(
                f"another controller runs this study ({_owner(path)}): wait for its end, or end it first"
            ) from None
        file.truncate(0)
        file.write(json.dumps({"pid": os.getpid(), "host": socket.gethostname()}))
        file.flush()
        yield


def _owner(path: Path) -> str:
    try:
        owner = json.loads(path.read_text())
    except ValueError:
        return "it has only just begun"  # it holds the lock but has not yet written its name
    return f"process {owner['pid']} on {owner['host']}"
