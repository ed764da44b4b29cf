"""Members of a fused job go on exactly: in the same job again, in other company, and in plain PyTorch."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from nasflow.job.events import Epoch, Final
from tests.training.fused_jobs import TOLERANCE, fused_members, plain_training, same
from tests.training.interrupted import interrupted
from tests.training.jobs import BLOBS, evaluator, evictions, make_job, outcome, sample, train, weights

LR = {"float": [1e-3, 1e-1], "log": True}
EXACT: dict[str, Any] = {"precision": "64-true", "data": BLOBS | {"params": {"batch_size": 24}}}
MIXED = "fused_spaces.py:mixed"
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "adamw": {"name": {"pick": ["adam", "adamw"]}, "lr": LR, "weight_decay": 0.1},
    "momentum": {"name": {"pick": ["sgd", "rmsprop"]}, "lr": LR, "momentum": 0.9},
    "one by one": {"name": {"pick": ["nadam", "adamax"]}, "lr": LR},
}


@pytest.mark.parametrize("epoch", [1, 3])
@pytest.mark.parametrize("space", ["mixed", "images"])
def test_interrupted_and_resumed(space: str, epoch: int, tmp_path: Path) -> None:
    """While members end at different epochs."""
    data = {"target": "spaces.py:images"} if space == "images" else BLOBS
    config = evaluator(
        **EXACT | {"data": {**data, "params": {"batch_size": 24}}},
        epochs={"int": [1, 4]},
        optimizer={"name": {"pick": ["sgd", "adamw"]}, "lr": LR},
        early_stopping={"metric": "val_loss", "direction": "minimize", "patience": 1, "min_delta": 0.02},
    )
    spec = make_job(f"fused_spaces.py:{space}", config, sample(f"fused_spaces.py:{space}", config, 8), fuse="always")
    whole = train(spec, tmp_path / "once")
    lasts = [event.trial for event in whole if isinstance(event, Epoch) and event.epoch == epoch]
    told = interrupted(spec, tmp_path / "twice", trial=lasts[len(lasts) // 2], epoch=epoch)
    again = train(spec, tmp_path / "twice")
    assert len({event.epochs for event in whole if isinstance(event, Final)}) > 1
    assert not evictions(told) and not evictions(again) and not evictions(whole)
    for member in spec.members:
        assert outcome(again, tmp_path / "twice", member.trial) == outcome(whole, tmp_path / "once", member.trial)


def test_from_one_company_to_another(tmp_path: Path) -> None:
    """Begun in two jobs, ended in one; begun fused, ended one by one."""
    config = evaluator(**EXACT, epochs=3, optimizer=OPTIMIZERS["adamw"])
    members = dict(enumerate(sample(MIXED, config, 6)))
    whole = train(make_job(MIXED, config, members, fuse="always"), tmp_path / "whole")
    for half in ([0, 1, 2], [3, 4, 5]):
        spec = make_job(MIXED, config, {trial: members[trial] for trial in half}, fuse="always")
        interrupted(spec, tmp_path / "parts", trial=half[-1], epoch=1)
    interrupted(make_job(MIXED, config, members, fuse="always"), tmp_path / "parts", trial=5, epoch=2)
    events = train(make_job(MIXED, config, members, fuse="never"), tmp_path / "parts")
    for trial in members:
        same(outcome(events, tmp_path / "parts", trial), outcome(whole, tmp_path / "whole", trial))


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_a_checkpoint_goes_on_in_plain_pytorch(kind: str, tmp_path: Path) -> None:
    """A model, torch's own optimizer and a loop, none of nasflow's."""
    three = evaluator(**EXACT, epochs=3, optimizer=OPTIMIZERS[kind])
    members = sample(MIXED, three, 4)
    longer = train(make_job(MIXED, three, members, fuse="always"), tmp_path / "three")
    assert fused_members(longer) == {0, 1, 2, 3}
    spec = make_job(MIXED, evaluator(**EXACT, epochs=2, optimizer=OPTIMIZERS[kind]), members, fuse="always")
    train(spec, tmp_path / "two")
    for trial in range(4):
        model, optimizer, stream, batches = plain_training(spec, trial, tmp_path / "two", epoch=2)
        with stream:
            for x, y in batches:
                optimizer.zero_grad()
                F.cross_entropy(model(x.double()), y).backward()
                optimizer.step()
        expected = weights(tmp_path / "three", trial)
        for name, tensor in model.state_dict().items():
            torch.testing.assert_close(tensor, expected[f"model.{name}"], rtol=TOLERANCE, atol=TOLERANCE)


def test_bits_of_a_member_that_goes_on_alone(tmp_path: Path) -> None:
    """From a merged checkpoint, by nasflow and by plain PyTorch; also if it is interrupted once more."""
    config = evaluator(**EXACT, epochs=4, optimizer=OPTIMIZERS["adamw"])
    members = dict(enumerate(sample(MIXED, config, 4)))
    interrupted(make_job(MIXED, config, members, fuse="always"), tmp_path / "merged", trial=3, epoch=2)
    for trial, values in members.items():
        alone = make_job(MIXED, config, {trial: values})
        shutil.copytree(tmp_path / "merged", tmp_path / f"a{trial}")
        shutil.copytree(tmp_path / "merged", tmp_path / f"b{trial}")
        events = train(alone, tmp_path / f"a{trial}")
        interrupted(alone, tmp_path / f"b{trial}", trial=trial, epoch=3)
        again = train(alone, tmp_path / f"b{trial}")
        assert outcome(again, tmp_path / f"b{trial}", trial) == outcome(events, tmp_path / f"a{trial}", trial)
        begun = max(event.epoch for event in events if isinstance(event, Epoch) and event.replayed)
        model, optimizer, stream, _ = plain_training(alone, trial, tmp_path / "merged", epoch=begun)
        for epoch in range(begun, 4):
            *_, batches = plain_training(alone, trial, tmp_path / "merged", epoch)
            model.train()
            with stream:
                for x, y in batches:
                    optimizer.zero_grad()
                    F.cross_entropy(model(x.double()), y).backward()
                    optimizer.step()
        expected = weights(tmp_path / f"a{trial}", trial)
        assert all(torch.equal(t, expected[f"model.{name}"]) for name, t in model.state_dict().items())


def test_bits_of_a_batch_that_goes_on_from_solo_checkpoints(tmp_path: Path) -> None:
    """Whether its members had been saved each by itself or all in one file, and whether it is interrupted again."""
    config = evaluator(**EXACT, epochs=4, optimizer=OPTIMIZERS["momentum"])
    members = dict(enumerate(sample(MIXED, config, 4)))
    for trial, values in members.items():
        interrupted(make_job(MIXED, config, {trial: values}), tmp_path / "solo", trial=trial, epoch=2)
    interrupted(make_job(MIXED, config, members), tmp_path / "joint", trial=3, epoch=2)
    merged = make_job(MIXED, config, members, fuse="always")
    shutil.copytree(tmp_path / "solo", tmp_path / "again")
    events = {name: train(merged, tmp_path / name) for name in ("solo", "joint")}
    interrupted(merged, tmp_path / "again", trial=3, epoch=3)
    events["again"] = train(merged, tmp_path / "again")
    assert fused_members(events["solo"]) == members.keys()
    for trial in members:
        first, *others = [outcome(told, tmp_path / name, trial) for name, told in events.items()]
        assert all(other == first for other in others), trial
