"""How a trial on several devices ends when one of its ranks does."""

from pathlib import Path

import pytest

from nasflow.job.events import Ended, Epoch, Event, Evicted
from tests.training.wide.jobs import own_module, run, wide


def evicted(events: list[Event]) -> Evicted:
    (found,) = [event for event in events if isinstance(event, Evicted)]
    assert events[-1] == Ended(at=events[-1].at), "the job itself has not failed"
    return found


@pytest.mark.parametrize(("strategy", "rank"), [("ddp", 1), pytest.param("fsdp", 0, marks=pytest.mark.long)])
def test_what_any_rank_raises_is_blamed_on_the_trial(strategy: str, rank: int, tmp_path: Path) -> None:
    code, events = run(wide(strategy), tmp_path, "raise", rank, 2)
    assert code == 0
    assert [event.epoch for event in events if isinstance(event, Epoch)] == [1]
    found = evicted(events)
    assert found.epoch == 2
    assert "ValueError: this rank can't go on" in found.error


@pytest.mark.long
def test_a_loss_that_is_not_finite_on_one_rank(tmp_path: Path) -> None:
    code, events = run(wide(), tmp_path, "nan", 1, 2)
    assert code == 0
    assert "training loss is nan in epoch 2, step 2" in evicted(events).error


@pytest.mark.long
def test_a_rank_that_exits_ends_the_job_as_it_has_ended(tmp_path: Path) -> None:
    code, events = run(wide(), tmp_path, "exit", 1, 2)
    assert code == 3
    assert not any(isinstance(event, Ended | Evicted) for event in events)


@pytest.mark.long
def test_a_job_that_is_asked_to_end_goes_on_where_it_was(tmp_path: Path) -> None:
    code, events = run(wide(), tmp_path, "preempt", 1, 2)
    ended = events[-1]
    assert code == 1 and isinstance(ended, Ended)
    assert ended.preempted and ended.infrastructure
    assert run(wide(), tmp_path)[0] == 0


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Manual", "evaluator.parallel: Manual optimizes manually, which can't be done on several devices yet"),
        ("Closing", "evaluator.parallel: LBFGS calls its step several times, which can't be done on several devices"),
        ("Skipping", "training_step returned no loss; on several devices (evaluator.parallel) no batch can be skipped"),
        (
            "Normed",
            "evaluator.parallel: a device got one sample of batch 4, of which a batch norm has no statistics",
        ),
        ("Unfreezing", "evaluator.parallel: model.0.bias was frozen when the devices were connected, and trains now"),
    ],
)
def test_what_can_not_be_done_on_several_devices_is_said(name: str, words: str, tmp_path: Path) -> None:
    code, events = run(wide(**own_module(name)), tmp_path)
    assert code == 0
    assert words in evicted(events).error


@pytest.mark.long
def test_batches_that_are_dicts(tmp_path: Path) -> None:
    code, events = run(wide(data={"target": "spaces.py:dicts"}, **own_module("OfDicts")), tmp_path)
    assert code == 0
    assert not any(isinstance(event, Evicted) for event in events)
