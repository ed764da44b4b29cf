"""Several workers from one process that has imported what jobs need: each is a fork of it."""

import ctypes
import os
import secrets
import sys
from collections.abc import Sequence

import psutil

from nasflow.process_id import process_id
from nasflow.training_service.local.state import TOKEN_VARIABLE, LocalState


def fork_workers(state: LocalState, slots: Sequence[str]) -> str:
    """Fork a worker for each slot and put it on record in the place of this process.

    Returns in the forked processes only, each with its slot, a session, a log and a token of its own. This process
    stays their parent, so that none is left a zombie, and ends after the last of them. A worker whose slot is no longer
    kept for this process is not on record, and finds itself dismissed.
    """
    forked = {}
    recorded, record = os.pipe()
    for slot in slots:
        token = secrets.token_hex(8)
        pid = os.fork()
        if pid == 0:
            os.close(record)
            os.setsid()
            write_to(state, slot)
            _take(token)
            os.read(recorded, 1)  # comes back when `record` is closed, be it by this process's end
            os.close(recorded)
            return slot
        forked[slot] = process_id(pid), token
    os.close(recorded)
    with state.lock():
        for slot, (process, token) in forked.items():
            kept = state.worker(slot)
            if process is not None and kept is not None and kept.process.pid == os.getpid():
                state.register(kept.model_copy(update={"process": process, "token": token}))
    os.close(record)
    for _ in forked:
        os.wait()
    os._exit(0)


def write_to(state: LocalState, slot: str) -> None:
    """Send this process's output to the log of a slot."""
    log = state.log(slot)
    log.parent.mkdir(parents=True, exist_ok=True)
    sys.stdout.flush()
    sys.stderr.flush()
    with log.open("ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)


def _take(token: str) -> None:
    """Make `token` the TOKEN_VARIABLE of this process and its offspring, in the eyes of other processes too.

    Those see the memory that the environment was in when the program started, so it is changed there (as setproctitle
    changes a process's name): a forked process never gets another one.
    """
    getenv = ctypes.CDLL(None).getenv
    getenv.restype = ctypes.c_void_p
    if len(os.environ[TOKEN_VARIABLE]) != len(token):
        raise ValueError(f"{TOKEN_VARIABLE} has no room for a token of {len(token)} characters")
    ctypes.memmove(getenv(TOKEN_VARIABLE.encode()), token.encode(), len(token))
    os.environ[TOKEN_VARIABLE] = token
    if psutil.Process().environ().get(TOKEN_VARIABLE) != token:
        raise RuntimeError(f"{TOKEN_VARIABLE} can't be changed in the environment that other processes see")
