"""What hooks, schedules, optimizers and steps change or read between steps counts merged as it does alone."""

from pathlib import Path
from typing import Any

import pytest

from nasflow.job.events import Epoch, Event, Planned
from nasflow.training.unit.reasons import SETTINGS
from tests.training.fused_jobs import fused_and_apart, fused_members, interrupted_as_whole
from tests.training.jobs import evictions, make_job, sample
from tests.training.member.test_hooks import as_lightning
from tests.training.unit.test_lockstep import lightning

FILE = "settled_modules.py"
SPACE = "fused_spaces.py:mixed"
DROPPING = f"{FILE}:dropping"


def settled(name: str, how: str = "", **values: Any) -> Any:
    params = {"how": {"pick": [how]}, **values.pop("params", {})}
    return lightning(name, **{"file": FILE, "params": params, "epochs": 2, **values})


def reasons(events: list[Event]) -> set[str]:
    return {why for event in events if isinstance(event, Planned) for why in event.alone.values()}


@pytest.mark.parametrize("how", ["", "freezes"])
def test_a_buffer_or_a_frozen_parameter_that_appears_in_a_step(how: str, tmp_path: Path) -> None:
    assert not evictions(fused_and_apart(SPACE, settled("LateMask", how), tmp_path, 3, all_fused=False))


def test_steps_know_the_last_batch(tmp_path: Path) -> None:
    events = fused_and_apart(SPACE, settled("LastBatch"), tmp_path, 3)
    assert all(event.metrics["last"] for event in events if isinstance(event, Epoch))


@pytest.mark.parametrize("refuses", ["evaluation", "training"])
def test_a_model_that_refuses_a_mode_evicts_its_trial_only(refuses: str, tmp_path: Path) -> None:
    space, config = f"{FILE}:strict", lightning("Plain", epochs=2)
    drawn = sample(space, config, 3)
    members = {trial: {**one, "refuses": refuses if trial == 1 else "nothing"} for trial, one in enumerate(drawn)}
    events = fused_and_apart(space, config, tmp_path, members, all_fused=False)
    assert {trial: event.error.splitlines()[0] for trial, event in evictions(events).items()} == {
        1: "ValueError: no other mode"
    }


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("shaken", "its optimizer Shaken is none of torch's"),
        ("sharp", "its optimizer Sharp is none of torch's"),
        ("plainly", "its optimizer Plainly is none of torch's"),
        ("hooked", "its optimizer SGD has hooks"),
    ],
)
def test_an_optimizer_with_code_of_the_users_goes_by_itself(how: str, why: str, tmp_path: Path) -> None:
    config = settled("OwnOptimizer", how)
    events = fused_and_apart(SPACE, config, tmp_path, 3, all_fused=False)
    assert not evictions(events)
    assert len({event.metrics["train_loss"] for event in events if isinstance(event, Epoch)}) == 6, "they train"
    assert (reasons(events), fused_members(events)) == ({why}, set())


@pytest.mark.parametrize("how", ["shaken", "sharp", "hooked"])
def test_an_optimizer_of_the_users_as_plain_lightning(how: str, tmp_path: Path) -> None:
    config = settled("OwnOptimizer", params={"lr": 0.05, "how": how}, data={"target": "spaces.py:ordered"})
    as_lightning(config, tmp_path)


def test_a_schedule_that_draws_in_each_step(tmp_path: Path) -> None:
    fused_and_apart(SPACE, settled("OwnSchedule", "draws"), tmp_path, 3)


@pytest.mark.parametrize("how", ["by epoch", "by step"])
def test_a_schedule_that_changes_the_model(how: str, tmp_path: Path) -> None:
    events = fused_and_apart(DROPPING, settled("OwnSchedule", how), tmp_path, 3, all_fused=False)
    assert fused_members(events) == {0, 1, 2}, "they begin together"
    assert reasons(events) == {SETTINGS}


@pytest.mark.parametrize(
    ("how", "at", "kind"),
    [("clear", 2, "adamw"), ("replace", 2, "adagrad"), ("zero", 2, "adamw"), ("clear", 5, "adamw")],
)
def test_a_state_that_is_reset_in_an_epoch(how: str, at: int, kind: str, tmp_path: Path) -> None:
    """Also after the last batch of an epoch."""
    resets = {"target": f"{FILE}:Resets", "params": {"how": how, "at": at}}
    fused_and_apart(SPACE, settled("Adaptive", kind, callbacks=[resets]), tmp_path, 3)


@pytest.mark.parametrize("how", ["clear", "replace"])
def test_a_state_that_is_reset_in_a_step(how: str, tmp_path: Path) -> None:
    fused_and_apart(SPACE, settled("Adaptive", how), tmp_path, 3)


@pytest.mark.long
def test_a_job_whose_states_were_reset_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    resets = {"target": f"{FILE}:Resets", "params": {"how": "clear", "at": 2}}
    config = settled("Adaptive", callbacks=[resets], epochs=3)
    interrupted_as_whole(make_job(SPACE, config, sample(SPACE, config, 3), fuse="always"), tmp_path)


@pytest.mark.parametrize("how", ["step", "hook"])
def test_gradients_of_the_last_step_that_are_read_in_the_next(how: str, tmp_path: Path) -> None:
    events = fused_and_apart(SPACE, settled("LooksBack", how), tmp_path, 3, all_fused=False)
    norms = [event.metrics["norm"] for event in events if isinstance(event, Epoch)]
    assert all(norms)
