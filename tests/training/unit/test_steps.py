"""Weighted classes, accumulated gradients, averaged weights: as plain PyTorch, fused as apart, resumed to the bit."""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.utils.class_weight import compute_class_weight
from torch import nn
from torch.nn import functional as F

from nasflow.config.search import EvaluatorConfig
from nasflow.errors import PreemptedError
from nasflow.job.events import Epoch, Planned
from nasflow.job.spec import JobSpec, trial_dir
from nasflow.space.architecture import Architecture
from nasflow.training.member_maker import load_job_data, make_member, samples_of
from nasflow.training.training_job import TrainingJob
from nasflow.training.unit import grouping
from tests.training.fused_jobs import TOLERANCE, fused_and_apart, fused_members, resumed_exactly
from tests.training.interrupted import halves, interrupted
from tests.training.jobs import evaluator, evictions, make_job, outcome, sample, train, weights
from tests.training.member.test_hooks import FUSED, as_lightning, hooked
from tests.training.unit.test_recipes import BOTH, EPOCHS, EXACT, LR, MIXED, RATE, alone

WEIGHTS = [0.2, 1.0, 3.5]
MIXES = "it mixes its batches by its own random stream"
RECIPES: dict[str, dict[str, Any]] = {
    "class weights": {"class_weights": WEIGHTS},
    "class weights, smoothed": {"class_weights": WEIGHTS, "label_smoothing": 0.2},
    "balanced classes": {
        "class_weights": "balanced",
        "data": {"target": "spaces.py:unbalanced", "params": {"batch_size": 24}},
    },
    "accumulated": {"accumulate_grad_batches": 2},
    "accumulated and clipped": {"accumulate_grad_batches": 2, "gradient_clip_val": 0.1},
    "accumulated over an epoch": {"accumulate_grad_batches": 9},
    "accumulated, by step": {
        "accumulate_grad_batches": 2,
        "schedule": {"name": "polynomial", "interval": "step", "power": 1},
    },
    "averaged": {"ema": {"decay": 0.8}},
    "mixed": {"mixup": {"alpha": 0.4}, "class_weights": WEIGHTS},
    "all": {"ema": {"decay": 0.6}, "accumulate_grad_batches": 2, "class_weights": WEIGHTS, "gradient_clip_val": 0.5},
}


def plainly(spec: JobSpec, trial: int) -> tuple[dict[str, torch.Tensor], list[float]]:
    """Train a trial by a loop of plain PyTorch: the weights it is validated by, and its loss after each epoch."""
    config: Any = spec.evaluator
    data: Any = load_job_data(spec.data, spec.base_dir, spec.data_seed)
    member = make_member(spec, spec.members[trial], lambda: samples_of(data))
    model = member.module.model.double()  # type: ignore[union-attr, operator]
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    every, steps = config.accumulate_grad_batches, 0
    total = EPOCHS * -(-len(data.train) // every)
    weighted = config.class_weights
    if weighted == "balanced":
        labels = torch.cat([y for _, y in data.train]).numpy()
        weighted = compute_class_weight("balanced", classes=np.unique(labels), y=labels)
        assert len(set(weighted)) == 3
    classes = None if weighted is None else torch.as_tensor(weighted, dtype=torch.float64)
    average: Any = None
    losses = []

    def loss_of(trained: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        ways = {"weight": classes, "label_smoothing": config.label_smoothing}
        if config.mixup is None or not trained.training:
            return F.cross_entropy(trained(x.double()), y, **ways)
        alpha = torch.tensor(config.mixup.alpha, dtype=torch.float64)
        share, order = torch.distributions.Beta(alpha, alpha).sample().item(), torch.randperm(len(x))
        output = trained(share * x.double() + (1 - share) * x.double()[order])
        parts = [F.cross_entropy(output, targets, **ways) for targets in (y, y[order])]
        return share * parts[0] + (1 - share) * parts[1]

    for epoch in range(EPOCHS):
        data.train.epoch = data.validation.epoch = epoch
        model.train()
        batches = list(data.train)
        with member.rng:
            for index, (x, y) in enumerate(batches):
                (loss_of(model, x, y) / every).backward()
                if (index + 1) % every and index + 1 < len(batches):
                    continue
                if config.gradient_clip_val:
                    nn.utils.clip_grad_norm_(model.parameters(), config.gradient_clip_val)
                optimizer.step()
                optimizer.zero_grad()
                steps += 1
                if config.schedule.interval == "step":
                    optimizer.param_groups[0]["lr"] = RATE * (1 - steps / total)
                if config.ema and average is None:
                    average = [parameter.detach().clone() for parameter in model.parameters()]
                elif config.ema:
                    for kept, parameter in zip(average, model.parameters(), strict=True):
                        kept.lerp_(parameter.detach(), 1 - config.ema.decay)
        scored = copy.deepcopy(model).eval()
        if average is not None:
            for parameter, kept in zip(scored.parameters(), average, strict=True):
                parameter.data.copy_(kept)
        with torch.no_grad():
            found = [(loss_of(scored, x, y).item(), len(y)) for x, y in data.validation]
        losses.append(sum(value * size for value, size in found) / sum(size for _, size in found))
    return scored.state_dict(), losses


@pytest.mark.parametrize(("name", "fuse"), [*((name, "always") for name in RECIPES), ("all", "never")])
def test_as_plain_pytorch(name: str, fuse: Any, tmp_path: Path) -> None:
    config = evaluator(**EXACT | RECIPES[name], optimizer={"lr": RATE})
    spec = make_job(MIXED, config, sample(MIXED, config, 3), fuse=fuse)
    events = train(spec, tmp_path)
    mixes = config.mixup is not None  # type: ignore[union-attr]
    assert fused_members(events) == ({0, 1, 2} if fuse == "always" and not mixes else set())
    assert not (mixes and fuse == "always") or set(alone(events).values()) == {MIXES}
    for trial in range(3):
        wanted, losses = plainly(spec, trial)
        told = [e.metrics["val_loss"] for e in events if isinstance(e, Epoch) and e.trial == trial]
        assert told == pytest.approx(losses, rel=TOLERANCE)
        for key, tensor in weights(tmp_path, trial).items():
            torch.testing.assert_close(tensor, wanted[key.removeprefix("model.")], rtol=TOLERANCE, atol=TOLERANCE)


LIGHTNING: dict[str, Any] = {"data": {"target": "spaces.py:blobs"}}
SEARCHED: dict[str, EvaluatorConfig] = {
    "class weights": evaluator(
        **EXACT,
        optimizer=BOTH,
        class_weights=[0.5, {"float": [0.1, 4]}, {"pick": [0, 1]}],
        label_smoothing={"pick": [0.0, 0.1]},
    ),
    "balanced classes": evaluator(**EXACT | RECIPES["balanced classes"], optimizer=BOTH),
    "all": evaluator(
        **EXACT,
        optimizer=BOTH,
        accumulate_grad_batches={"pick": [1, 2]},
        ema={"decay": {"float": [0.2, 0.95]}},
        schedule={"name": "cosine", "interval": "step"},
        gradient_clip_val={"pick": [0.1, 5.0]},
    ),
    "one by one": evaluator(
        **EXACT, optimizer={"target": "torch.optim:ASGD", "lr": LR}, accumulate_grad_batches=2, ema={"decay": 0.7}
    ),
    "a module": hooked(
        "Plain",
        file="lightning_modules.py",
        params={"lr": LR},
        accumulate_grad_batches={"pick": [1, 2]},
        ema={"decay": {"float": [0.2, 0.95]}},
        **LIGHTNING,
    ),
}


@pytest.mark.parametrize("name", SEARCHED)
def test_fused_and_apart(name: str, tmp_path: Path) -> None:
    config = SEARCHED[name]
    drawn = sample(MIXED, config, 6)
    if "accumulate_grad_batches" in drawn[0]:  # those with equal steps are fused
        drawn = [Architecture({**one, "accumulate_grad_batches": 1 + trial % 2}) for trial, one in enumerate(drawn)]
    fused_and_apart(MIXED, config, tmp_path, dict(enumerate(drawn)))


@pytest.mark.parametrize("name", ["all", "a module"])
def test_resumed_to_the_same_bits(name: str, tmp_path: Path) -> None:
    config = SEARCHED[name]
    spec = make_job(MIXED, config, sample(MIXED, config, 4), fuse="always")
    resumed_exactly(spec, tmp_path)


@pytest.mark.parametrize("both", [{"mixup": {"alpha": {"float": [0.1, 1]}}, "cutmix": {}}, {"cutmix": {"alpha": 0.5}}])
def test_mixed_images_resumed_to_the_same_bits(both: dict[str, Any], tmp_path: Path) -> None:
    space, data = "fused_spaces.py:images", {"target": "spaces.py:images"}
    config = evaluator(epochs=3, data=data, ema={"decay": 0.5}, **both)
    spec = make_job(space, config, sample(space, config, 2), fuse="always")
    whole = train(spec, tmp_path / "once")
    interrupted(spec, tmp_path / "twice", trial=1, epoch=2)
    again = train(spec, tmp_path / "twice")
    assert not evictions(whole)
    for trial in (0, 1):
        assert outcome(again, tmp_path / "twice", trial) == outcome(whole, tmp_path / "once", trial)


def test_averages_have_the_same_bits_in_any_company(tmp_path: Path) -> None:
    """In single precision, alone or in stacks, in which another member's failure changes nothing."""
    lr = {"pick": [0.01, 1e30]}
    config = evaluator(epochs=3, optimizer={"name": "sgd", "lr": lr}, ema={"decay": 0.9}, data=EXACT["data"])
    member = {**sample("spaces.py:net", config, 1)[0], "optimizer.lr": 0.01}
    members = [member, {**member, "optimizer.lr": 1e30}, member, member]
    spec = make_job("spaces.py:net", config, members, fuse="always")
    events = train(spec, tmp_path / "failing")
    assert set(evictions(events)) == {1}
    whole = make_job("spaces.py:net", config, {0: member, 2: member, 3: member}, fuse="always")
    assert fused_members(train(whole, tmp_path / "whole")) == {0, 2, 3}
    apart = make_job("spaces.py:net", config, {0: member, 2: member, 3: member})
    train(apart, tmp_path / "apart")
    for trial in (0, 2, 3):
        state, other, own = (weights(tmp_path / root, trial) for root in ("failing", "whole", "apart"))
        assert all(torch.equal(state[key], other[key]) for key in own)
        for key, tensor in own.items():
            torch.testing.assert_close(state[key], tensor, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", [*FUSED, "Warms", "Clips", "ScalesLoss"])
def test_accumulates_as_lightning_with_hooks(name: str, tmp_path: Path) -> None:
    clip = {"gradient_clip_val": 0.05} if name in ("Clips", "Watches") else {}
    as_lightning(hooked(name, accumulate_grad_batches=3, **clip), tmp_path)


@pytest.mark.parametrize("name", ["Watches", "ScalesGradients"])
def test_fused_hooks_of_accumulated_gradients(name: str, tmp_path: Path) -> None:
    config = hooked(name, params={"lr": {"float": [1e-2, 1e-1]}}, accumulate_grad_batches=2, **LIGHTNING)
    fused_and_apart(MIXED, config, tmp_path, 4)


def test_averages_as_lightnings(tmp_path: Path) -> None:
    """The metrics and the weights are those of Lightning's callback, by itself and fused."""
    plain, members = {"file": "lightning_modules.py", **LIGHTNING}, [{"classes": 3}] * 2
    callbacks = [{"target": "hooked_modules.py:Average", "params": {"decay": 0.7}}]
    called = make_job("spaces.py:linear", hooked("Plain", callbacks=callbacks, **plain), members)
    wanted = train(called, tmp_path / "called")
    for fuse in ("never", "always"):
        named = make_job("spaces.py:linear", hooked("Plain", ema={"decay": 0.7}, **plain), members, fuse=fuse)
        events = train(named, tmp_path / fuse)
        for trial in (0, 1):
            told, expected = outcome(events, tmp_path / fuse, trial), outcome(wanted, tmp_path / "called", trial)
            for mine, other in zip(told.epochs, expected.epochs, strict=True):
                assert mine == pytest.approx(other, rel=1e-6)  # Lightning's average begins in single precision
            for key, tensor in weights(tmp_path / "called", trial).items():
                own = weights(tmp_path / fuse, trial)[key]
                torch.testing.assert_close(own, tensor, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("batch", "saved"), [(2, True), (3, False)])
def test_asked_to_end_within_a_step(batch: int, saved: bool, tmp_path: Path) -> None:
    """Between steps the epoch's state is saved; within one the epoch is trained again, to the same bits."""
    target = {"target": "spaces.py:taken_back", "params": {"marker": str(tmp_path / "marker"), "batch": batch}}
    config = evaluator(data=target, epochs=3, accumulate_grad_batches=2, ema={"decay": 0.8})
    spec = make_job("spaces.py:net", config, sample("spaces.py:net", config, 2), fuse="always", on_preempt=True)
    with pytest.raises(PreemptedError):
        TrainingJob(spec, tmp_path / "twice", lambda event: None).run()
    assert bool(halves(tmp_path / "twice")) is saved
    again, whole = train(spec, tmp_path / "twice"), train(spec, tmp_path / "once")
    for trial in (0, 1):
        assert trial_dir(tmp_path / "once", trial).exists()
        assert outcome(again, tmp_path / "twice", trial) == outcome(whole, tmp_path / "once", trial)


def test_members_with_steps_of_other_lengths_are_in_other_units(tmp_path: Path) -> None:
    config = evaluator(**EXACT, accumulate_grad_batches={"pick": [1, 2]})
    drawn = sample(MIXED, config, 4)
    members = [{**one, "accumulate_grad_batches": 1 + trial % 2} for trial, one in enumerate(drawn)]
    events = train(make_job(MIXED, config, members, fuse="always"), tmp_path)
    units = [set(unit.members) for event in events if isinstance(event, Planned) for unit in event.units]
    assert sorted(map(sorted, units)) == [[0, 2], [1, 3]]


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (
            {"accumulate_grad_batches": 2, "data": {"target": "fused_spaces.py:unsized"}},
            "ConfigError: evaluator.accumulate_grad_batches: the training loader does not know its length",
        ),
        (
            {"class_weights": [1, 2]},
            "TrialError: evaluator.class_weights: there are 2, and the model tells 3 classes apart",
        ),
    ],
)
@pytest.mark.parametrize("fuse", ["always", "never"])
def test_mistakes_of_trials(values: dict[str, Any], said: str, fuse: Any, tmp_path: Path) -> None:
    config = evaluator(**EXACT | values)
    evicted = evictions(train(make_job(MIXED, config, sample(MIXED, config, 2), fuse=fuse), tmp_path))
    assert set(evicted) == {0, 1}
    assert all(event.error.startswith(said) for event in evicted.values())


def test_a_module_that_steps_by_itself_is_refused(tmp_path: Path) -> None:
    config = hooked("Adversaries", accumulate_grad_batches=2)
    [evicted] = evictions(train(make_job("spaces.py:linear", config, [{"classes": 3}]), tmp_path)).values()
    assert evicted.error.startswith("ConfigError: evaluator.accumulate_grad_batches: Adversaries optimizes manually")


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"accumulate_grad_batches": 0}, "'accumulate_grad_batches' should be at least 1"),
        ({"ema": {"decay": 1}}, "'decay' should be a number from 0 to below 1"),
        ({"class_weights": [1, -1]}, "'class_weights' should be numbers from 0 on, not all of them 0"),
        ({"class_weights": [0, 0]}, "'class_weights' should be numbers from 0 on, not all of them 0"),
        ({"class_weights": [1, 2], "loss": {"target": "a:b"}}, "'class_weights' are of cross_entropy"),
        ({"class_weights": "balanced", "loss": {"target": "a:b"}}, "'class_weights' are of cross_entropy"),
        ({"class_weights": "ballanced"}, "Input should be 'balanced'"),
    ],
)
def test_mistakes_of_the_config(values: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        evaluator(**values)


@pytest.mark.parametrize(("recipe", "kept"), [({}, 0), (RECIPES["averaged"], 1), (RECIPES["all"], 2)])
def test_units_leave_memory_for_what_is_kept_of_each_weight(
    recipe: dict[str, Any], kept: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    monkeypatch.setattr(grouping, "members_that_fit", lambda parts, device, kept: asked.append(kept) or 2)
    config = evaluator(epochs=1, **recipe)
    events = train(make_job(MIXED, config, sample(MIXED, config, 4), fuse="always"), tmp_path)
    assert set(asked) == {kept}
    units = [unit.members for event in events if isinstance(event, Planned) for unit in event.units]
    assert [len(members) for members in units] == [2, 2]
