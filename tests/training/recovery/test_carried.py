"""A trial that goes on where another one ended comes to the same bits as one that never stopped."""

import logging
from pathlib import Path
from typing import Any

import pytest

from nasflow.checkpoint.carried import carry_over
from nasflow.config.search import EvaluatorConfig
from nasflow.errors import InfrastructureError
from nasflow.job.events import Epoch, Started
from nasflow.job.spec import trial_dir
from tests.training.fused_jobs import fused_members
from tests.training.jobs import evaluator, evictions, make_job, outcome, sample, train
from tests.training.models.hooked_modules import Average

SPACE = "fused_spaces.py:mixed"
SETTINGS: dict[str, dict[str, Any]] = {
    "ready-made": {"optimizer": {"name": "adamw"}, "schedule": {"name": "cosine", "warmup_epochs": 1}},
    "lightning": {"kind": "lightning", "module": {"target": "hooked_modules.py:Remembers"}},
    "average": {"callbacks": [{"target": f"hooked_modules.py:{Average.__name__}"}]},
    "data module": {"data": {"target": "spaces.py:TransferAugmented"}},
    "may stop early": {"early_stopping": {"metric": "val_loss", "patience": 9}},
}


def config(setting: str, **values: Any) -> EvaluatorConfig:
    return evaluator(epochs=5, precision="64-true", stop_after={"pick": [2, 3, 5]}, **{**SETTINGS[setting], **values})


def members(setting: str, until: int, first: int) -> dict[int, dict[str, Any]]:
    drawn = sample(SPACE, config(setting), 3, seed=4)
    return {first + place: {**one, "stop_after": until} for place, one in enumerate(drawn)}


def job(setting: str, until: int, first: int, fuse: Any) -> Any:
    """A job of three trials; trials of one architecture have one seed."""
    spec = make_job(SPACE, config(setting), members(setting, until, first), fuse=fuse)
    seeded = [member.model_copy(update={"seed": 500 + place}) for place, member in enumerate(spec.members)]
    return spec.model_copy(update={"members": seeded})


@pytest.mark.parametrize("fuse", ["always", "never"])
@pytest.mark.parametrize("setting", list(SETTINGS))
def test_promoted_twice_or_never(setting: str, fuse: Any, tmp_path: Path) -> None:
    whole = train(job(setting, 5, 20, fuse), tmp_path)
    assert not evictions(whole)
    assert fuse == "never" or fused_members(whole) == {20, 21, 22}
    train(job(setting, 2, 0, fuse), tmp_path)
    for first, (before, until) in ((10, (0, 3)), (30, (10, 5))):
        for place in range(3):
            carry_over(trial_dir(tmp_path, before + place), trial_dir(tmp_path, first + place), 0)
        events = train(job(setting, until, first, fuse), tmp_path)
        trained = [event.epoch for event in events if isinstance(event, Epoch) and not event.replayed]
        assert sorted(set(trained)) == ([3] if until == 3 else [4, 5]), "no epoch is trained twice"
        assert next(event for event in events if isinstance(event, Started)).resumed[first] == (2 if until == 3 else 3)
    for place in range(3):
        assert outcome(events, tmp_path, 30 + place) == outcome(whole, tmp_path, 20 + place)


def test_one_that_has_ended_by_itself_does_not_go_on(tmp_path: Path) -> None:
    stopping = {"early_stopping": {"metric": "val_loss", "patience": 1, "min_delta": 100.0}}
    base = make_job(SPACE, config("ready-made", **stopping), members("ready-made", 3, 0))
    train(base, tmp_path)
    carry_over(trial_dir(tmp_path, 0), trial_dir(tmp_path, 9), 0)
    events = train(base.model_copy(update={"members": [base.members[0].model_copy(update={"trial": 9})]}), tmp_path)
    epochs = [event for event in events if isinstance(event, Epoch)]
    assert [event.replayed for event in epochs] == [True] * 2


def test_what_is_there_stays(tmp_path: Path) -> None:
    train(job("ready-made", 3, 0, "never"), tmp_path)
    before = sorted(trial_dir(tmp_path, 1).iterdir())
    carry_over(trial_dir(tmp_path, 0), trial_dir(tmp_path, 1), 0)
    assert sorted(trial_dir(tmp_path, 1).iterdir()) == before


@pytest.mark.parametrize("how", ["gone", "damaged"])
def test_without_a_checkpoint_it_trains_from_the_start(
    how: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    train(job("ready-made", 2, 0, "never"), tmp_path)
    for file in trial_dir(tmp_path, 0).iterdir():
        file.unlink() if how == "gone" else file.write_bytes(b"nothing")
    with caplog.at_level(logging.WARNING):
        carry_over(trial_dir(tmp_path, 0), trial_dir(tmp_path, 9), 0)
    assert not trial_dir(tmp_path, 9).exists() or not list(trial_dir(tmp_path, 9).glob("*.safetensors"))
    assert ("trains from the start" in caplog.text) == (how == "damaged")


def test_a_checkpoint_that_can_not_be_read_at_present_stays_and_no_epoch_is_trained_again(tmp_path: Path) -> None:
    train(job("ready-made", 2, 0, "never"), tmp_path)
    newest = trial_dir(tmp_path, 0) / "epoch-0002.safetensors"
    newest.unlink()
    newest.mkdir()
    with pytest.raises(InfrastructureError, match="can't be read at present"):
        carry_over(trial_dir(tmp_path, 0), trial_dir(tmp_path, 9), 0)
    newest.rmdir()
    newest.write_bytes(b"damaged")
    carry_over(trial_dir(tmp_path, 0), trial_dir(tmp_path, 9), 0)
    assert newest.exists(), "who only reads removes nothing"
