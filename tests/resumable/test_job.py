"""Jobs that stand alone: groups of steps, stop signals, checkpoints, and other processes."""

import math
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from nasflow.errors import CheckpointError, ConfigError
from nasflow.resumable import checkpoint_manager
from nasflow.resumable.checkpoint_manager import CheckpointManager
from nasflow.resumable.job import Call, CompiledJob, EpochLimit, Job, JobRunner
from tests.flows.forked_commands import run_forked, start_forked
from tests.resumable import counting_job
from tests.resumable.counting_job import add, begin, die_at, end, enough, pause

JOB = Job(
    init=[Call(begin, start=0)], epoch=[Call(add, amount=3)], exit=[end], stop=[Call(enough, most=12), EpochLimit(9)]
)
NAMES = ["total", "layer"]


def manager(folder: Path, **options: Any) -> CheckpointManager:
    return CheckpointManager(folder / "counted", NAMES, **options)


def test_groups_in_order_until_a_signal_is_on() -> None:
    state = JobRunner(JOB).run()
    assert state["log"] == ["init", "epoch 1", "epoch 2", "epoch 3", "epoch 4", "exit"]
    assert (state["epoch"], state["total"]) == (4, 12)
    few = JobRunner(Job(JOB.init, JOB.epoch, JOB.exit, [EpochLimit(2)])).run()
    assert (few["epoch"], few["total"]) == (2, 6)
    assert JobRunner(Job(JOB.init, JOB.epoch, JOB.exit, [EpochLimit(0)])).run()["log"] == ["init", "exit"]


def test_saved_after_init_and_every_epoch_and_resumed(tmp_path: Path) -> None:
    JobRunner(Job(JOB.init, JOB.epoch, stop=[EpochLimit(2)]), manager(tmp_path, keep=9)).run()
    assert manager(tmp_path).epochs() == [0, 1, 2]
    state = JobRunner(JOB, manager(tmp_path, keep=9)).run()
    assert state["log"] == ["init", "epoch 3", "epoch 4", "exit"]
    assert state["total"] == float(state["layer"].weight[0, 0]) == 12
    assert JobRunner(JOB, manager(tmp_path, keep=9)).run()["log"] == ["init", "exit"], "it has ended before"


def test_resumed_from_a_given_epoch(tmp_path: Path) -> None:
    JobRunner(JOB, manager(tmp_path, keep=9)).run()
    state = JobRunner(JOB, manager(tmp_path, keep=9), resume_from_epoch=1).run()
    assert state["log"] == ["init", "epoch 2", "epoch 3", "epoch 4", "exit"]
    with pytest.raises(CheckpointError, match="epoch-0007"):
        JobRunner(JOB, manager(tmp_path), resume_from_epoch=7).run()


class Clock:
    """Goes on only while something sleeps, however busy the machine is."""

    def __init__(self) -> None:
        self._now = 0.0

    def monotonic(self) -> float:
        return self._now

    def sleep(self, seconds: float) -> None:
        self._now += seconds


def test_when_and_for_how_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(JOB.init, JOB.epoch, stop=[EpochLimit(7)])
    JobRunner(job, manager(tmp_path / "a", keep=9, every_epochs=3)).run()
    assert manager(tmp_path / "a").epochs() == [0, 3, 6, 7], "the last is saved in any case"
    JobRunner(job, manager(tmp_path / "b")).run()
    assert manager(tmp_path / "b").epochs() == [6, 7]
    best = manager(tmp_path / "c", best=lambda state: abs(state["total"] - 7))
    JobRunner(job, best).run()
    assert manager(tmp_path / "c").epochs() == [2, 6, 7], "a total of 6 is the nearest to 7"
    clock = Clock()
    for module in (checkpoint_manager, counting_job):
        monkeypatch.setattr(module, "time", clock)
    slow = Job(JOB.init, [*JOB.epoch, Call(pause, seconds=45)], stop=[EpochLimit(4)])
    JobRunner(slow, manager(tmp_path / "d", keep=9, every_epochs=99, every_minutes=1)).run()
    assert manager(tmp_path / "d").epochs() == [0, 2, 4]


def test_the_best_stays_when_the_job_is_resumed(tmp_path: Path) -> None:
    def run(epochs: int) -> list[int]:
        best = manager(tmp_path, keep=1, best=lambda state: abs(state["total"] - 7))  # 6, after two epochs, is nearest
        JobRunner(Job(JOB.init, JOB.epoch, stop=[EpochLimit(epochs)]), best).run()
        best.close()
        return manager(tmp_path).epochs()

    assert run(3) == [2, 3]
    assert run(5) == [2, 5]
    assert run(7) == [2, 7]


@pytest.mark.parametrize("odd", [math.nan, -math.inf])
def test_a_score_that_is_no_number_is_not_the_best(tmp_path: Path, odd: float) -> None:
    scores = [odd, 3.0, 1.0, odd, 2.0]
    best = manager(tmp_path, keep=1, best=lambda state: scores[state["total"]])
    for epoch in range(len(scores)):
        best.save({"total": epoch, "layer": 0}, epoch)
    best.close()
    assert manager(tmp_path).epochs() == [2, 4]


def test_a_damaged_checkpoint_is_passed_over(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    job = Job(JOB.init, JOB.epoch, stop=[EpochLimit(3)])
    JobRunner(job, manager(tmp_path, keep=9)).run()
    newest = tmp_path / "counted" / "epoch-0003.safetensors"
    newest.write_bytes(newest.read_bytes()[:-1])
    state = JobRunner(job, manager(tmp_path, keep=9)).run()
    assert state["log"] == ["init", "epoch 3"]
    assert "the epoch before 3 is loaded, because checkpoint " in caplog.text
    for epoch in range(4):
        (tmp_path / "counted" / f"epoch-{epoch:04d}.safetensors").write_text("")
    with pytest.raises(CheckpointError, match="epoch-0000"):
        JobRunner(job, manager(tmp_path, keep=9)).run()


def test_work_goes_on_while_a_checkpoint_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And what is written is what was there when it was taken."""
    saving = manager(tmp_path)
    write = CheckpointManager._write

    def slowly(self: CheckpointManager, *args: Any) -> None:
        time.sleep(0.3)
        write(self, *args)

    monkeypatch.setattr(CheckpointManager, "_write", slowly)
    state = {"total": 1, "layer": torch.nn.Linear(2, 2)}
    before = state["layer"].weight.detach().clone()  # type: ignore[attr-defined]
    began = time.monotonic()
    saving.save(state, 1)
    assert time.monotonic() - began < 0.2
    state["total"] = 2
    with torch.no_grad():
        state["layer"].weight.zero_()  # type: ignore[attr-defined]
    saving.close()
    manager(tmp_path).load(state)
    assert state["total"] == 1
    assert torch.equal(state["layer"].weight, before)  # type: ignore[attr-defined]


def test_a_job_sent_to_another_process_and_killed_there(tmp_path: Path) -> None:
    """Killed in its third epoch, and from outside in a later one; told as one that was not."""
    slow = [*JOB.epoch, Call(pause, seconds=0.05)]
    deadly = Job(JOB.init, [Call(die_at, epoch=3), *slow], JOB.exit, JOB.stop)
    file, told = tmp_path / "job.json", tmp_path / "told"
    file.write_text(deadly.compile().model_dump_json())
    command = ["python", counting_job.__file__, file, tmp_path / "counted", told]
    assert run_forked(command, Path.cwd(), os.environ).returncode == -signal.SIGKILL
    assert told.read_text().splitlines() == ["1 3", "2 6"]
    file.write_text(Job(JOB.init, slow, JOB.exit, JOB.stop).compile().model_dump_json())
    process = start_forked(command, Path.cwd(), os.environ)
    while len(told.read_text().splitlines()) < 3:
        time.sleep(0.005)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert run_forked(command, Path.cwd(), os.environ).returncode == 0
    assert told.with_suffix(".end").read_text() == "4 12 12.0"
    lines = told.read_text().splitlines()
    assert list(dict.fromkeys(lines)) == ["1 3", "2 6", "3 9", "4 12"]
    assert len(lines) <= 4 + 1 + 2, "but for an epoch in flight, and one on its way to the disk, nothing is done again"


def test_compiled_and_back() -> None:
    compiled = JOB.compile()
    again = CompiledJob.model_validate_json(compiled.model_dump_json())
    assert again == compiled
    assert JobRunner(again.load(Path.cwd())).run()["total"] == 12


@pytest.mark.parametrize("step", [lambda state: None, Call(lambda state: None)])
def test_a_step_that_can_not_be_sent(step: Any) -> None:
    with pytest.raises(ConfigError, match="of epoch can't be sent to another process; make it a function of a module"):
        Job(epoch=[step]).compile()
    with pytest.raises(
        ConfigError, match=r"an argument of step tests\.resumable\.counting_job:add of epoch is not JSON"
    ):
        Job(epoch=[Call(add, amount=torch.ones(1))]).compile()


def test_a_part_that_can_not_be_saved(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="state at '/total' is a object"):
        manager(tmp_path).save({"total": object(), "layer": torch.nn.Linear(1, 1)}, 0)
