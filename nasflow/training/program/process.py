"""A trial's program in its process, behind a guard: its output passed on in bounds, ended with all that it started."""

import contextlib
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, BinaryIO, cast

from nasflow.clean_text import last_lines
from nasflow.job import activity
from nasflow.training.program import guard

_PASSED = 2**20  # bytes that a program may print into the job's log
_KEPT = 2**13  # of the end of its standard error
_READ_WITHIN = 2.0  # seconds after its end

logger = logging.getLogger(__name__)


class Process:
    """A running program. Whatever it prints counts as progress of the job.

    Args:
        command: program and arguments.
        folder: where it is started.
        environment: its environment variables, all of them.
        turn: the lock of the trial's programs (`own_turn`); held until this one and all that it started have ended.
        asks: whether it reads answers from its standard input.
    """

    def __init__(
        self,
        command: Sequence[str],
        folder: Path,
        environment: Mapping[str, str],
        turn: BinaryIO,
        asks: bool = False,
    ):
        held, self._leash = os.pipe()
        try:
            self._guard = subprocess.Popen(
                [sys.executable, "-I", "-S", guard.__file__, str(held), str(turn.fileno()), *command],
                cwd=folder,
                env=environment,
                stdin=subprocess.PIPE if asks else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=[held, turn.fileno()],
                start_new_session=True,  # Ctrl-C is the job's affair
            )
        except BaseException:
            os.close(self._leash)
            raise
        finally:
            os.close(held)
        self._errors = _Output(cast(IO[bytes], self._guard.stderr), 2)
        self._outputs = [_Output(cast(IO[bytes], self._guard.stdout), 1), self._errors]

    def exit_code(self) -> int | None:
        """Return the exit code, negative for a signal; None while it runs. Then all that it printed has been read."""
        code = self._guard.poll()
        if code is not None:
            self._join()
        return code

    def answer(self, text: str) -> None:
        """Write a line to its standard input, if it still reads that."""
        if self._guard.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._guard.stdin.write(f"{text}\n".encode())
                self._guard.stdin.flush()

    def leave(self, seconds: float) -> None:
        """Wait for so long at most until it ends by itself."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._guard.wait(seconds)

    def end(self) -> None:
        """End it, if it still runs, and all processes that it started."""
        if self._leash >= 0:
            os.close(self._leash)
            self._leash = -1
        self._guard.wait()
        self._join()
        if self._guard.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._guard.stdin.close()

    def last_errors(self) -> str:
        """Return the last lines of its standard error."""
        return last_lines(self._errors.kept.decode(errors="replace"))

    def _join(self) -> None:
        for output in self._outputs:
            output.join(_READ_WITHIN)  # longer only if the guard was killed and a process left that prints there


class _Output(threading.Thread):
    """Passes on what a program prints, up to a limit, and keeps its end."""

    def __init__(self, stream: IO[bytes], to: int):
        super().__init__(daemon=True)
        self.kept = b""
        self._stream, self._to, self._left = stream, to, _PASSED
        self.start()

    def run(self) -> None:
        """Read to the end of the stream."""
        with self._stream:
            while some := os.read(self._stream.fileno(), 2**16):
                self.kept = (self.kept + some)[-_KEPT:]
                activity.progress()
                passed, self._left = some[: self._left], max(0, self._left - len(some))
                if passed and not self._left:
                    passed += (
                        f"\n[a trial's program printed more than {_PASSED} bytes; the rest is left out]\n".encode()
                    )
                try:
                    while passed:
                        passed = passed[os.write(self._to, passed) :]
                except OSError as error:  # as of a full disk, for which the program is not to blame
                    self._left = 0
                    logger.warning("what a trial's program prints is not in the job's log: %s", error)
