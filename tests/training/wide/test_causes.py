"""Of several ranks that end, the one counts that ended first; and no trial is blamed for what a machine did."""

import itertools
import json
import os
import signal
from collections.abc import Callable
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from nasflow.attempt.verdict import lacks_memory
from nasflow.errors import CheckpointError, InfrastructureError, TrialError
from nasflow.evaluator.candidate import Candidate
from nasflow.job import activity
from nasflow.system.memory import KillWatch
from nasflow.training.wide import ranks
from nasflow.training.wide.epochs.parts import EpochCheckpoints
from nasflow.training.wide.link import Link
from nasflow.training.wide.nodes.other_nodes import OtherNodes
from nasflow.training.wide.ranks import Ranks
from nasflow.training.wide.trial import WideTrial
from tests.training.wide.jobs import wide

Ends = list[Callable[[Link], Any]]


def by(number: signal.Signals) -> Callable[[Link], None]:
    return lambda link: os.kill(os.getpid(), number)


def leave(code: int) -> Callable[[Link], None]:
    return lambda link: os._exit(code)


def lose_the_job(link: Link) -> None:
    link._connection.close()
    raise OSError("Connection reset by peer")


def lose_a_peer(link: Link) -> None:
    raise RuntimeError("Connection closed by peer [127.0.0.1]:4711")


def fail(link: Link) -> None:
    raise ValueError("this model can't go on")


class Elsewhere(OtherNodes):
    """Another machine, some ranks of which have ended so."""

    def __init__(self, codes: dict[int, int], lacked_memory: set[int]):
        self.interface = "lo"
        self.links = {rank: Pipe()[0] for rank in codes}
        self.lacked_memory, self._reported = lacked_memory, codes

    def exit_codes(self) -> dict[int, int]:
        return self._reported

    def end(self) -> None:
        pass


def end_of(ends: Ends, others: OtherNodes | None = None) -> tuple[int, str, str]:
    """How a job's process ends whose ranks end so: its exit code or signal, and the name and text of what it raises."""
    reading, writing = os.pipe()
    if (child := os.fork()) == 0:
        try:
            Ranks(len(ends), lambda rank, link: ends[rank](link), 0, others).receive(lambda: None)
        except Exception as error:
            os.write(writing, json.dumps([type(error).__name__, str(error)]).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as told:
        name, text = json.loads(told.read() or '["", ""]')
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), name, text


@pytest.mark.parametrize(
    ("ends", "code"),
    [
        ([by(signal.SIGABRT), by(signal.SIGKILL)], -signal.SIGKILL),
        ([by(signal.SIGKILL), by(signal.SIGABRT)], -signal.SIGKILL),
        ([by(signal.SIGABRT), by(signal.SIGSEGV)], -signal.SIGSEGV),
        ([by(signal.SIGABRT), leave(3)], 3),
        ([by(signal.SIGABRT), by(signal.SIGABRT)], -signal.SIGABRT),
        ([lose_a_peer, by(signal.SIGSEGV)], -signal.SIGSEGV),
        ([lose_the_job, by(signal.SIGKILL)], -signal.SIGKILL),
    ],
)
def test_the_job_ends_as_the_rank_that_ended_first(ends: Ends, code: int) -> None:
    assert end_of(ends) == (code, "", "")


def test_a_rank_that_could_not_report_its_error_is_lost() -> None:
    code, name, text = end_of([lose_the_job, lose_a_peer])
    assert (code, name) == (0, "InfrastructureError")
    assert "lost each other" in text
    assert end_of([lose_the_job, lose_the_job])[1:] == (
        "InfrastructureError",
        "the processes of a trial have lost each other: a rank could not report its error",
    )


def test_what_a_rank_raises_counts_before_what_follows() -> None:
    _, name, text = end_of([by(signal.SIGABRT), fail])
    assert (name, text.splitlines()[0]) == ("TrialError", "ValueError: this model can't go on")


@pytest.mark.parametrize(
    "text",
    [
        "CUDA error: uncorrectable ECC error encountered",
        "NCCL: Cuda failure 'CUDA-capable device(s) is/are unavailable'",
    ],
)
def test_a_gpu_that_fails_is_not_the_trials_fault(text: str) -> None:
    def fail_there(link: Link) -> None:
        raise RuntimeError(text)

    _, name, said = end_of([fail_there, lose_a_peer])
    assert (name, said.splitlines()[0]) == ("InfrastructureError", f"RuntimeError: {text}")


def test_memory_that_another_machine_lacked() -> None:
    codes = {1: -signal.SIGKILL, 2: 1}
    code, name, text = end_of([by(signal.SIGABRT)], Elsewhere(codes, {1}))
    assert (code, name) == (0, TrialError.__name__)
    assert text == "MemoryError: the kernel ended rank 1, on another machine, for want of memory"
    assert lacks_memory(text)
    assert end_of([by(signal.SIGABRT)], Elsewhere(codes, set()))[0] == -signal.SIGKILL


@pytest.mark.parametrize(("kills", "held", "blamed"), [(1, 0.3, True), (1, 0.1, False), (0, 0.3, False)])
def test_ranks_that_use_little_are_not_blamed_for_the_memory_of_others(
    kills: int, held: float, blamed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = itertools.chain([0], itertools.repeat(kills))
    monkeypatch.setattr(ranks, "KillWatch", lambda: KillWatch(lambda: next(counts), lambda: 0.0))
    monkeypatch.setattr(ranks, "peak_bytes", lambda _: int(held * 2**30))  # of the larger of two
    monkeypatch.setattr(ranks, "memory_limit", lambda: 2**30)
    text = "MemoryError: the kernel ended rank 1 for want of memory"
    found = end_of([by(signal.SIGABRT), by(signal.SIGKILL)])
    assert found == ((0, TrialError.__name__, text) if blamed else (-signal.SIGKILL, "", ""))


def test_each_epoch_that_is_trained_again_has_the_time_of_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[str] = []
    monkeypatch.setattr(activity, "restart_epoch", lambda: begun.append("epoch"))
    told = {"metrics": {"loss": 1.0}, "seconds": 1.0, "finished": False, "stopped_early": False, "is_ahead": False}
    spec = wide()
    trial = WideTrial(spec, spec.members[0], tmp_path, Candidate(nn.Linear(1, 1), spec.evaluator))
    trial.finished_epochs = 2
    trial._ranks = Ranks(1, lambda rank, link: [link.goes_on_after({"epoch": each, **told}) for each in (1, 2, 3)], 2)
    assert trial.train_epoch(lambda: None) == {"loss": 1.0}
    trial._ranks.end()
    assert begun == ["epoch"] * 2


@pytest.mark.parametrize("error", [OSError(116, "Stale file handle"), CheckpointError("it is damaged")])
def test_a_disk_that_fails_is_not_the_trials_fault(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise error

    checkpoints = EpochCheckpoints(tmp_path, 0, 2)
    for name in ("save", "load"):
        monkeypatch.setattr(checkpoints._managers[0], name, refuse)
    with pytest.raises(InfrastructureError, match=r"checkpoints can't be saved or loaded: .*(Stale|damaged)"):
        checkpoints.save({}, 1)
    with pytest.raises(InfrastructureError, match=r"checkpoints can't be saved or loaded"):
        checkpoints.load({})


def test_the_key_to_how_ends_are_ordered_is_complete() -> None:
    codes = [0, -signal.SIGABRT, 3, -signal.SIGTERM, -signal.SIGSEGV, -signal.SIGKILL]
    ordered = sorted(codes, key=ranks._is_consequence)
    assert {*ordered[:2]} == {-signal.SIGTERM, -signal.SIGKILL}
    assert {*ordered[-2:]} == {0, -signal.SIGABRT}
