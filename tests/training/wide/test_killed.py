"""Whenever a rank is killed, all go on from the last epoch that every rank has saved."""

import signal
from pathlib import Path

import pytest

from nasflow.config.search import CheckpointConfig
from nasflow.job.events import Ended, Epoch, Final
from nasflow.job.spec import stop_mark, trial_dir
from tests.training.wide.jobs import assert_equal, run, solo, state, trained, wide


@pytest.mark.parametrize(
    ("strategy", "where", "rank", "again"),
    [
        ("fsdp", "step", 1, []),
        ("ddp", "saving", 1, [2]),
        pytest.param("ddp", "job", 0, [], marks=pytest.mark.long),
        pytest.param("ddp", "step", 0, [], marks=pytest.mark.long),
        pytest.param("fsdp", "saving", 0, [2], marks=pytest.mark.long),
        pytest.param("fsdp", "manifest", 0, [2], marks=pytest.mark.long),
        pytest.param("fsdp", "job", 1, [], marks=pytest.mark.long),
    ],
)
def test_a_process_is_killed_in_its_second_epoch(
    strategy: str, where: str, rank: int, again: list[int], tmp_path: Path
) -> None:
    spec, root = wide(strategy), tmp_path / "wide"
    code, before = run(spec, root, where, rank, 2)
    assert code == -signal.SIGKILL
    assert not any(isinstance(event, Ended) for event in before)
    code, after = run(spec, root)
    assert code == 0
    told = [event for event in [*before, *after] if isinstance(event, Epoch)]
    new = [event.epoch for event in told if not event.replayed]
    assert len(new) == len({*new}), "no epoch is reported as new twice"
    assert {event.epoch for event in told} == {1, 2, 3}
    assert where == "job" or new == [1, 2, 3], "only a job that is killed may keep what it was about to report"
    assert sum(isinstance(event, Final) for event in after) == 1
    often = [1, 1 + (2 in again), 1]
    assert trained(root) == {0: often, 1: often}, "only an epoch that not every rank has saved is trained again"
    assert_equal(state(root), solo(spec, tmp_path / "solo"))


@pytest.mark.long
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_random_numbers_and_statistics_of_batches_go_on_to_the_same_bits(strategy: str, tmp_path: Path) -> None:
    values = {"space": "cnn", "architecture": {"width": 4, "kernel": 3, "dropout": 0.3}}
    spec = wide(strategy, **values, data={"target": "spaces.py:images"})
    assert run(spec, tmp_path / "killed", "step", 1, 2)[0] == -signal.SIGKILL
    assert run(spec, tmp_path / "killed")[0] == 0
    assert run(spec, tmp_path / "whole")[0] == 0
    assert_equal(state(tmp_path / "killed"), state(tmp_path / "whole"), 0.0)


@pytest.mark.long
def test_a_request_to_stop_waits_for_the_epochs_that_ranks_have(tmp_path: Path) -> None:
    """Of those after the job's own record, which is behind, the first ones are no longer kept."""
    spec = wide(epochs=8).model_copy(update={"checkpoint": CheckpointConfig(every_epochs=10)})
    assert run(spec, tmp_path, "job", 0, 5)[0] == -signal.SIGKILL
    stop_mark(tmp_path, 0).touch()
    code, events = run(spec, tmp_path)
    assert code == 0
    (final,) = [event for event in events if isinstance(event, Final)]
    assert (final.epochs, final.stopped_early, state(tmp_path)["epoch"]) == (5, True, 5)


def test_a_damaged_epoch_is_passed_over_and_the_number_of_ranks_may_change(tmp_path: Path) -> None:
    root = tmp_path / "wide"
    spec = wide("fsdp", 3, epochs=4)
    assert run(spec, root, "step", 2, 4)[0] == -signal.SIGKILL
    folder = trial_dir(root, 0) / "ranks" / "0"
    assert sorted(path.name for path in folder.iterdir() if path.name.startswith("epoch")) == [
        "epoch-0002",
        "epoch-0003",
    ]
    part = next(path for path in (folder / "epoch-0003").iterdir() if path.suffix == ".safetensors")
    part.write_bytes(part.read_bytes()[:-1] + b"\7")
    code, events = run(wide("ddp", 2, epochs=4), root)
    assert code == 0
    assert [event.epoch for event in events if isinstance(event, Epoch) and not event.replayed] == [4]
    assert trained(root) == {0: [1, 1, 2, 1], 1: [1, 1, 2, 1], 2: [1, 1, 1]}
    assert_equal(state(root), solo(spec, tmp_path / "solo"))
