"""Recipes of the ready-made evaluators: as plain PyTorch, fused as by themselves, and to the same bits when resumed."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import lr_scheduler

from nasflow.job.events import Epoch, Planned
from nasflow.job.spec import JobSpec
from nasflow.load_target import load_target
from nasflow.training.member_maker import load_job_data, make_member
from tests.training.fused_jobs import TOLERANCE, fused_and_apart, fused_members, resumed_exactly
from tests.training.jobs import BLOBS, evaluator, evictions, make_job, sample, train, weights

EPOCHS, RATE = 3, 0.02
NORMS = (nn.BatchNorm1d, nn.LayerNorm)
MIXED = "fused_spaces.py:mixed"
EXACT: dict[str, Any] = {"precision": "64-true", "epochs": EPOCHS, "data": BLOBS | {"params": {"batch_size": 24}}}
LR = {"float": [1e-3, 1e-1], "log": True}
BOTH = {"name": {"pick": ["sgd", "adamw"]}, "lr": LR}
Make = Callable[[nn.Module, int], tuple[torch.optim.Optimizer, Any]]


def plainly(spec: JobSpec, trial: int, make: Make, loss: Any = F.cross_entropy) -> tuple[nn.Module, list[float]]:
    """Train a trial by a loop of plain PyTorch: its model, and its validation loss after each epoch.

    Args:
        make: gives the optimizer and what is called after each step (without arguments) and each epoch (with the loss).
    """
    data = load_job_data(spec.data, spec.base_dir, spec.data_seed)
    limits = spec.evaluator.batch_limits
    loaders: Any = (data.train, data.validation)
    member = make_member(spec, spec.members[trial], list)
    model: Any = member.module.model.double()
    optimizer, schedule = make(model, min(len(loaders[0]), limits.train or 99))
    losses = []
    for epoch in range(EPOCHS):
        for loader in loaders:
            loader.epoch = epoch
        model.train()
        with member.rng:
            for x, y in list(loaders[0])[: limits.train]:
                optimizer.zero_grad()
                loss(model(x.double()), y).backward()
                optimizer.step()
                schedule()
        model.eval()
        with torch.no_grad():
            found = [(loss(model(x.double()), y).item(), len(y)) for x, y in list(loaders[1])[: limits.validation]]
        losses.append(sum(value * size for value, size in found) / sum(size for _, size in found))
        schedule(losses[-1])
    return model, losses


def by_step(scheduler: Any) -> Callable[..., None]:
    def schedule(*epoch: float) -> None:
        if not epoch:
            scheduler.step()

    return schedule


def by_epoch(step: Callable[[float], None]) -> Callable[..., None]:
    def schedule(*epoch: float) -> None:
        if epoch:
            step(*epoch)

    return schedule


def adamw(make: Callable[[torch.optim.Optimizer, int], Callable[..., None]]) -> Make:
    def both(model: nn.Module, steps: int) -> tuple[torch.optim.Optimizer, Any]:
        optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
        return optimizer, make(optimizer, steps)

    return both


def nothing(*_: float) -> None:
    """Step no schedule."""


RECIPES: dict[str, tuple[dict[str, Any], Make]] = {
    "one cycle by step": (
        {"schedule": {"name": "one_cycle", "interval": "step", "end_factor": 0.01}},
        adamw(
            lambda o, steps: by_step(
                lr_scheduler.OneCycleLR(o, RATE, EPOCHS * steps, cycle_momentum=False, final_div_factor=4)
            )
        ),
    ),
    "restarts by step": (
        {"schedule": {"name": "cosine", "interval": "step", "restart_steps": 3, "restart_mult": 2}},
        adamw(lambda o, steps: by_step(lr_scheduler.CosineAnnealingWarmRestarts(o, 3, 2))),
    ),
    "polynomial by step": (
        {"schedule": {"name": "polynomial", "interval": "step", "power": 2}},
        adamw(lambda o, steps: by_step(lr_scheduler.PolynomialLR(o, EPOCHS * steps, 2))),
    ),
    "few batches, and a schedule that knows": (
        {"schedule": {"name": "polynomial", "interval": "step"}, "limit_batches": {"train": 2, "validation": 1}},
        adamw(lambda o, steps: by_step(lr_scheduler.PolynomialLR(o, EPOCHS * 2, 1))),
    ),
    "plateau": (
        {"schedule": {"name": "plateau", "gamma": 0.5, "patience": 0, "direction": "maximize"}},
        adamw(lambda o, steps: by_epoch(lr_scheduler.ReduceLROnPlateau(o, "max", 0.5, 0).step)),
    ),
}


@pytest.mark.parametrize("name", RECIPES)
def test_fused_is_plain_pytorch(name: str, tmp_path: Path) -> None:
    values, make = RECIPES[name]
    config = evaluator(**EXACT | {"optimizer": {"lr": RATE}} | values)
    spec = make_job(MIXED, config, sample(MIXED, config, 3), fuse="always")
    events = train(spec, tmp_path)
    assert fused_members(events) == {0, 1, 2}
    for trial in range(3):
        model, losses = plainly(spec, trial, make)
        told = [e.metrics["val_loss"] for e in events if isinstance(e, Epoch) and e.trial == trial]
        assert told == pytest.approx(losses, rel=TOLERANCE)
        for key, tensor in weights(tmp_path, trial).items():
            wanted = model.state_dict()[key.removeprefix("model.")]
            torch.testing.assert_close(tensor, wanted, rtol=TOLERANCE, atol=TOLERANCE)


def spared(model: nn.Module) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """The parameters with weight decay, and those of norms and biases."""
    norms = {p for part in model.modules() if isinstance(part, NORMS) for p in part.parameters()}
    some = {name: p in norms or name.endswith("bias") for name, p in model.named_parameters()}
    parts = [[p for name, p in model.named_parameters() if some[name] is is_spared] for is_spared in (False, True)]
    return parts[0], parts[1]


def without_decay(model: nn.Module, _: int) -> tuple[torch.optim.Optimizer, Any]:
    decayed, others = spared(model)
    groups: list[Any] = [{"params": decayed, "weight_decay": 0.5}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=RATE), nothing


RECIPES |= {
    "no decay": ({"optimizer": {"lr": RATE, "weight_decay": 0.5, "no_decay": ["norm", "bias"]}}, without_decay),
    "an optimizer of torch, stacked": (
        {"optimizer": {"target": "torch.optim:SGD", "lr": RATE, "params": {"momentum": 0.9, "dampening": 0.5}}},
        lambda model, _: (torch.optim.SGD(model.parameters(), RATE, momentum=0.9, dampening=0.5), nothing),
    ),
    "an optimizer of torch, by itself": (
        {"optimizer": {"target": "torch.optim:Adafactor", "lr": RATE}},
        lambda model, _: (torch.optim.Adafactor(model.parameters(), RATE), nothing),
    ),
}


SEARCHED: dict[str, dict[str, Any]] = {
    "no decay": {
        "optimizer": {
            "lr": LR,
            "name": {"pick": ["sgd", "adam", "adamw"]},
            "weight_decay": 0.5,
            "no_decay": ["norm", "bias"],
        }
    },
    "optimizer": {"optimizer": {"target": "torch.optim:RMSprop", "params": {"lr": LR, "alpha": {"pick": [0.8, 0.9]}}}},
    "one by one": {"optimizer": {"target": "torch.optim:ASGD", "lr": LR, "params": {"t0": {"int": [1, 20]}}}},
    "loss": {
        "loss": {
            "target": "torch.nn:MultiMarginLoss",
            "params": {"margin": {"float": [0.5, 2.0]}, "p": {"pick": [1, 2]}},
        },
        "metrics": ["f1", {"name": "top2", "top_k": 2}],
    },
    "few batches": {"limit_batches": 2, "schedule": {"name": "cosine", "interval": "step"}},
    "by step": {
        "schedule": {
            "name": {"pick": ["cosine", "one_cycle", "polynomial", "step"]},
            "interval": "step",
            "warmup_steps": {"int": [0, 5]},
            "restart_epochs": {"pick": [0, 1]},
            "power": {"float": [0.5, 2.0]},
            "rise": {"float": [0.1, 0.6]},
        },
    },
    "by epoch": {
        "schedule": {"name": {"pick": ["plateau", "polynomial"]}, "direction": "maximize", "patience": {"int": [0, 1]}},
    },
}


@pytest.mark.parametrize("name", SEARCHED)
def test_searched_recipes_fused_and_apart(name: str, tmp_path: Path) -> None:
    config = evaluator(**EXACT, **{"optimizer": BOTH, **SEARCHED[name]})
    fused_and_apart(MIXED, config, tmp_path, 6)


@pytest.mark.parametrize("name", SEARCHED)
def test_resumed_to_the_same_bits(name: str, tmp_path: Path) -> None:
    config = evaluator(**EXACT, **{"optimizer": BOTH, **SEARCHED[name]})
    spec = make_job(MIXED, config, sample(MIXED, config, 4), fuse="always")
    resumed_exactly(spec, tmp_path)


def test_no_length_is_said(tmp_path: Path) -> None:
    config = evaluator(
        **EXACT | {"data": {"target": "fused_spaces.py:unsized"}}, schedule={"name": "cosine", "interval": "step"}
    )
    events = train(make_job(MIXED, config, sample(MIXED, config, 2)), tmp_path)
    assert all("the training loader does not know its length" in e.error for e in evictions(events).values())
    assert len(evictions(events)) == 2


def alone(events: Any) -> dict[int, str]:
    """Why trials train by themselves."""
    return {trial: why for event in events if isinstance(event, Planned) for trial, why in event.alone.items()}


def test_an_optimizer_of_the_users_goes_by_itself(tmp_path: Path) -> None:
    """It replaces the data of parameters, which would tear them out of a stack."""
    config = evaluator(**EXACT, optimizer={"target": "../../evaluator/targets.py:Signs", "lr": RATE})
    spec = make_job(MIXED, config, sample(MIXED, config, 2), fuse="always")
    events = train(spec, tmp_path)
    assert alone(events) == dict.fromkeys((0, 1), "its optimizer Signs is none of torch's")
    kind = load_target("../../evaluator/targets.py:Signs", spec.base_dir)
    for trial in (0, 1):
        model, _ = plainly(spec, trial, lambda model, _: (kind(model.parameters(), RATE), nothing))
        for key, tensor in weights(tmp_path, trial).items():
            torch.testing.assert_close(tensor, model.state_dict()[key.removeprefix("model.")], rtol=0, atol=TOLERANCE)


TARGETS = "../../evaluator/targets.py"
METRICS: list[Any] = [
    "accuracy",
    {"name": "top2", "top_k": 2},
    {"name": "kappa", "target": "torchmetrics.classification:MulticlassCohenKappa"},
]


@pytest.mark.parametrize(
    ("values", "make_loss", "why"),
    [
        (
            {"loss": {"target": "torch.nn:MultiMarginLoss", "params": {"margin": 0.5}}, "metrics": METRICS},
            lambda base: nn.MultiMarginLoss(margin=0.5),
            None,
        ),
        (
            {"loss": {"target": f"{TARGETS}:Focal", "params": {"gamma": 1.5}}},
            lambda base: load_target(f"{TARGETS}:Focal", base)(1.5),
            "its loss is none of torch's",
        ),
        (
            {"metrics": [{"name": "largest", "target": f"{TARGETS}:Largest"}]},
            lambda base: F.cross_entropy,
            "its metric largest is none of torchmetrics'",
        ),
    ],
    ids=["torch's", "a user's loss", "a user's metric"],
)
def test_losses_and_metrics_by_path(values: dict[str, Any], make_loss: Any, why: str | None, tmp_path: Path) -> None:
    config = evaluator(**EXACT, optimizer={"lr": RATE}, **values)
    spec = make_job(MIXED, config, sample(MIXED, config, 2), fuse="always")
    events = train(spec, tmp_path)
    assert alone(events) == ({} if why is None else dict.fromkeys((0, 1), why))
    for trial in (0, 1):
        make = adamw(lambda optimizer, steps: nothing)
        model, losses = plainly(spec, trial, make, make_loss(spec.base_dir))
        told = [e.metrics["val_loss"] for e in events if isinstance(e, Epoch) and e.trial == trial]
        assert told == pytest.approx(losses, rel=TOLERANCE)
        for key, tensor in weights(tmp_path, trial).items():
            if key.startswith("model."):
                wanted = model.state_dict()[key.removeprefix("model.")]
                torch.testing.assert_close(tensor, wanted, rtol=TOLERANCE, atol=TOLERANCE)
