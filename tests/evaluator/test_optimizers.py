"""Optimizers and schedules by name are torch's own, and what they do not take is refused."""

import math
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch.optim import lr_scheduler

from nasflow.config.search import OptimizerConfig, ScheduleConfig
from nasflow.errors import ConfigError
from nasflow.evaluator.optimizers import make_optimizer, make_schedule, try_optimizer

KINDS = {
    "sgd": torch.optim.SGD,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "rmsprop": torch.optim.RMSprop,
    "adagrad": torch.optim.Adagrad,
    "nadam": torch.optim.NAdam,
    "radam": torch.optim.RAdam,
    "adamax": torch.optim.Adamax,
}


def trained(make: Any) -> torch.Tensor:
    """A weight after five steps down a bowl."""
    weight = torch.nn.Parameter(torch.tensor([3.0, -2.0]))
    optimizer = make([weight])
    for _ in range(5):
        optimizer.zero_grad()
        (weight**2 * torch.tensor([1.0, 5.0])).sum().backward()
        optimizer.step()
    return weight.detach()


@pytest.mark.parametrize("name", KINDS)
def test_by_name(name: str) -> None:
    found = trained(lambda weights: make_optimizer(OptimizerConfig(name=name, lr=0.05), weights))
    assert torch.equal(found, trained(lambda weights: KINDS[name](weights, lr=0.05)))


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("sgd", {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
        ("adamw", {"betas": (0.8, 0.9), "eps": 1e-3, "weight_decay": 0.0}),
        ("rmsprop", {"momentum": 0.5}),
    ],
)
def test_keys_reach_torch(name: str, keys: dict[str, Any]) -> None:
    found = trained(lambda weights: make_optimizer(OptimizerConfig(name=name, lr=0.05, **keys), weights))
    assert torch.equal(found, trained(lambda weights: KINDS[name](weights, lr=0.05, **keys)))
    assert not torch.equal(found, trained(lambda weights: KINDS[name](weights, lr=0.05)))


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        ("sgd", "betas", (0.9, 0.99)),
        ("sgd", "eps", 1e-3),
        ("adam", "momentum", 0.9),
        ("adagrad", "nesterov", True),
        ("rmsprop", "betas", (0.9, 0.99)),
    ],
)
def test_a_key_the_optimizer_does_not_take_is_named(name: str, key: str, value: Any) -> None:
    config = OptimizerConfig.model_validate({"name": name, key: value})
    with pytest.raises(ConfigError, match=rf"^evaluator\.optimizer\.{key}: {name} does not take it; leave it out$"):
        make_optimizer(config, [torch.nn.Parameter(torch.ones(1))])


@pytest.mark.parametrize("name", KINDS)
def test_trying_an_optimizer_finds_what_making_it_would(name: str) -> None:
    weight = torch.nn.Parameter(torch.zeros(2))
    tried, made = (call(OptimizerConfig(name=name, lr=0.05), [weight]) for call in (try_optimizer, make_optimizer))
    assert isinstance(tried, KINDS[name])
    assert tried.param_groups == made.param_groups
    refusals = []
    for call in (try_optimizer, make_optimizer):
        with pytest.raises(ValueError, match="Invalid learning rate") as refusal:
            call(OptimizerConfig(name=name, lr=-1.0), [weight])
        refusals.append(str(refusal.value))
    assert refusals[0] == refusals[1]


def test_trying_an_optimizer_leaves_torchs_compiler_alone() -> None:
    program = """
import sys, torch
from nasflow.config.search import OptimizerConfig, ScheduleConfig
from nasflow.evaluator.optimizers import make_schedule, try_optimizer
make_schedule(ScheduleConfig(), try_optimizer(OptimizerConfig(), [torch.nn.Parameter(torch.zeros(2))]), 1)
sys.exit("torch._dynamo" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_unknown_names() -> None:
    """A config that was validated holds none."""
    weights = [torch.nn.Parameter(torch.ones(1))]
    with pytest.raises(ConfigError, match=r"evaluator\.optimizer\.name: there is no 'lion'; known: sgd, adam, "):
        make_optimizer(OptimizerConfig.model_construct(name="lion"), weights)
    schedule = ScheduleConfig.model_construct(name="zigzag")
    with pytest.raises(ConfigError, match=r"evaluator\.schedule\.name: there is no 'zigzag'; known: constant, cosine"):
        make_schedule(schedule, torch.optim.SGD(weights), 3)


def rates(epochs: int, **config: Any) -> list[float]:
    """The learning rate of each epoch, of a base rate of 1."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1.0)
    schedule = make_schedule(ScheduleConfig.model_validate(config), optimizer, epochs)
    return list(stepped(optimizer, schedule, epochs))


def stepped(optimizer: Any, schedule: Any, epochs: int) -> Any:
    for _ in range(epochs):
        yield optimizer.param_groups[0]["lr"]
        optimizer.step()
        schedule.step()


@pytest.mark.parametrize(
    ("config", "make"),
    [
        ({"name": "constant"}, lambda o: lr_scheduler.ConstantLR(o, 1.0)),
        ({"name": "cosine"}, lambda o: lr_scheduler.CosineAnnealingLR(o, 8)),
        ({"name": "cosine", "end_factor": 0.2}, lambda o: lr_scheduler.CosineAnnealingLR(o, 8, eta_min=0.2)),
        ({"name": "step", "step_size": 3, "gamma": 0.5}, lambda o: lr_scheduler.StepLR(o, 3, 0.5)),
        ({"name": "exponential", "gamma": 0.7}, lambda o: lr_scheduler.ExponentialLR(o, 0.7)),
        ({"name": "linear", "end_factor": 0.1}, lambda o: lr_scheduler.LinearLR(o, 1.0, 0.1, total_iters=8)),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_shapes_are_torchs(config: dict[str, Any], make: Any) -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1.0)
    assert rates(8, **config) == pytest.approx(list(stepped(optimizer, make(optimizer), 8)), rel=1e-6)


def test_warm_up_rises_evenly_to_the_full_rate_and_shortens_the_rest() -> None:
    assert rates(5, name="constant", warmup_epochs=3) == [0.25, 0.5, 0.75, 1.0, 1.0]
    cosine = [0.5 * (1 + math.cos(math.pi * epoch / 4)) for epoch in range(4)]
    assert rates(6, name="cosine", warmup_epochs=2) == pytest.approx([1 / 3, 2 / 3, *cosine])
    assert rates(2, name="linear", warmup_epochs=5) == pytest.approx([1 / 6, 2 / 6]), "training may end before it does"
