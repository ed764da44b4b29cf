"""A trial's programs run one after the other, also when the job of the earlier one was killed."""

import fcntl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from nasflow.errors import InfrastructureError

_POLL = 0.01  # seconds
_WITHIN = 60.0  # seconds; a guard gives its program a few, then kills it


@contextmanager
def own_turn(path: Path, look_up: Callable[[], None]) -> Iterator[BinaryIO]:
    """Wait until no process holds the lock `path`; hold it, and give the open file.

    A process that inherits the file goes on holding the lock after this has ended.

    Args:
        path: the lock file; made if missing.
        look_up: called while this waits; what it raises ends the wait.

    Raises:
        InfrastructureError: an earlier program of the trial does not end.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    begin = time.monotonic()
    with path.open("ab") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                pass
            if time.monotonic() - begin > _WITHIN:
                raise InfrastructureError(
                    f"a program of this trial that an earlier job started has not ended for {_WITHIN:.0f} s; end the "
                    f"processes that have {path} open (fuser {path})"
                )
            look_up()
            time.sleep(_POLL)
        yield lock
