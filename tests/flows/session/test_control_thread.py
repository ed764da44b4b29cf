"""The thread that looks for pauses and cancellations outlives any error, as when no file can be opened."""

import errno
import logging
import os
import threading
from types import SimpleNamespace

import pytest

from nasflow.flows.session import control
from nasflow.flows.session.control import Control


def test_it_looks_again_after_any_error(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    watcher = object.__new__(Control)
    monkeypatch.setattr(control, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(control, "get_run_logger", lambda: logging.getLogger("run"))
    failures: list[Exception] = [ValueError("a proxy's page"), OSError(errno.EMFILE, os.strerror(errno.EMFILE))]
    looks: list[int] = []

    def look() -> None:
        looks.append(len(failures))
        if failures:
            raise failures.pop()

    watcher._session, watcher._ended = SimpleNamespace(interrupted=False), threading.Event()
    monkeypatch.setattr(watcher, "_look", look, raising=False)
    watcher._watch()
    assert looks == [2, 1, 0]
    assert caplog.text.count("Too many open files") == caplog.text.count("can't be read") == 1, "told once"
    failures.append(OSError(errno.EMFILE, "no files"))
    watcher._ended.set()
    watcher._watch()
    assert looks[3:] == [1], "it ends with the session"
