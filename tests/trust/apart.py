"""Calls in a separate process, because what they find may end it."""

import multiprocessing
import signal
import traceback
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.connection import Connection
from typing import Any, TypeVar

T, R = TypeVar("T"), TypeVar("R")

_fork = multiprocessing.get_context("fork")


class EndedError(Exception):
    """The process was ended from outside or by a fault."""


class RaisedError(Exception):
    """The call raised; the message is its traceback."""


def each(function: Callable[[T], R], items: Iterable[T]) -> Iterator[tuple[T, R | EndedError | RaisedError]]:
    """Yield each item with the function's result, computed in a separate process that is replaced if it ends."""
    left = list(items)
    while left:
        receiver, sender = _fork.Pipe(duplex=False)
        process = _fork.Process(target=_work, args=(function, left, sender), daemon=True)
        process.start()
        sender.close()
        try:
            while left:
                result = receiver.recv()
                yield left.pop(0), result
        except EOFError:
            process.join()
            code = process.exitcode or 0
            how = signal.Signals(-code).name if code < 0 else f"code {code}"
            yield left.pop(0), EndedError(f"the process ended with {how}")
        except BaseException:
            process.terminate()
            raise
        finally:
            receiver.close()
            process.join()


def _work(function: Callable[[Any], Any], items: list[Any], sender: Connection) -> None:
    for item in items:
        try:
            result = function(item)
        except Exception:
            result = RaisedError(traceback.format_exc())
        sender.send(result)
