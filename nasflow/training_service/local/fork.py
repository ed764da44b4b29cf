"""Forks several workers from one process that has already imported what jobs need."""

import ctypes
import os
import secrets
import sys
from collections.abc import Sequence

import psutil

from nasflow.system.process_id import process_id
from nasflow.training_service.local.state import TOKEN_VARIABLE, LocalState


def fork_workers(state: LocalState, slots: Sequence[str]) -> str:
    """Fork a worker for each slot and record it in place of this process.

    Returns, in the forked processes only, the slot; each has its own session, log and token. This process
    stays their parent, so that none is left a zombie, and exits after the last one. If a slot is no longer recorded for
    this process, its worker is not recorded, and so finds that it is dismissed.
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
            os.read(recorded, 1)  # returns when the parent closes `record` or dies
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
    """Redirect this process's output to the log of a slot."""
    log = state.log(slot)
    log.parent.mkdir(parents=True, exist_ok=True)
    sys.stdout.flush()
    sys.stderr.flush()
    with log.open("ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)


def _take(token: str) -> None:
    """Set TOKEN_VARIABLE to `token` for this process and its descendants, also as seen by other processes.

    Others see the memory that held the environment when the program started, and a fork keeps that memory. So the value
    is changed in place (as setproctitle changes a process's name).
    """
    getenv = ctypes.CDLL(None).getenv
    getenv.restype = ctypes.c_void_p
    if len(os.environ[TOKEN_VARIABLE]) != len(token):
        raise ValueError(f"{TOKEN_VARIABLE} has no room for a token of {len(token)} characters")
    ctypes.memmove(getenv(TOKEN_VARIABLE.encode()), token.encode(), len(token))
    os.environ[TOKEN_VARIABLE] = token
    if psutil.Process().environ().get(TOKEN_VARIABLE) != token:
        raise RuntimeError(f"{TOKEN_VARIABLE} can't be changed in the environment that other processes see")
