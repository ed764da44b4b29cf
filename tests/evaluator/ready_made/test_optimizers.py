"""Optimizers and schedules by name are torch's own, and what they do not take is refused."""

import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim import lr_scheduler

from nasflow.config.search import OptimizerConfig, ScheduleConfig
from nasflow.errors import ConfigError
from nasflow.evaluator.ready_made.optimizers import make_optimizer, make_schedule, parameter_groups, try_optimizer
from nasflow.load_target import load_target

HERE = Path(__file__).parents[1]
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
from nasflow.evaluator.ready_made.optimizers import make_schedule, try_optimizer
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


def rates(epochs: int, steps: int = 1, **config: Any) -> list[float]:
    """The learning rate of each epoch, or of each of its steps, of a base rate of 1."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1.0)
    schedule = make_schedule(ScheduleConfig.model_validate(config), optimizer, epochs, steps)
    return list(stepped(optimizer, schedule, epochs * steps))


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
        ({"name": "polynomial", "power": 2}, lambda o: lr_scheduler.PolynomialLR(o, 8, 2)),
        (
            {"name": "one_cycle", "end_factor": 0.001},
            lambda o: lr_scheduler.OneCycleLR(o, 1.0, 8, cycle_momentum=False, final_div_factor=40),
        ),
        (
            {"name": "one_cycle", "rise": 0.6, "start_factor": 0.1, "end_factor": 0.1},
            lambda o: lr_scheduler.OneCycleLR(
                o, 1.0, 8, pct_start=0.6, cycle_momentum=False, div_factor=10, final_div_factor=1
            ),
        ),
        ({"name": "cosine", "restart_epochs": 3}, lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 3)),
        (
            {"name": "cosine", "restart_epochs": 2, "restart_mult": 2, "end_factor": 0.1},
            lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 2, 2, 0.1),
        ),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_shapes_are_torchs(config: dict[str, Any], make: Any) -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1.0)
    wanted = pytest.approx(list(stepped(optimizer, make(optimizer), 8)), rel=1e-6, abs=1e-12)
    assert rates(8, **config) == wanted
    by_step = {key.replace("restart_epochs", "restart_steps"): value for key, value in config.items()}
    assert rates(2, 4, interval="step", **by_step) == wanted, "the same, over two epochs of four steps"


def test_warm_up_rises_evenly_to_the_full_rate_and_shortens_the_rest() -> None:
    assert rates(5, name="constant", warmup_epochs=3) == [0.25, 0.5, 0.75, 1.0, 1.0]
    cosine = [0.5 * (1 + math.cos(math.pi * epoch / 4)) for epoch in range(4)]
    assert rates(6, name="cosine", warmup_epochs=2) == pytest.approx([1 / 3, 2 / 3, *cosine])
    assert rates(2, name="linear", warmup_epochs=5) == pytest.approx([1 / 6, 2 / 6]), "training may end before it does"


def test_warm_up_by_step_counts_steps_and_epochs() -> None:
    config = {"name": "constant", "interval": "step", "warmup_epochs": 1, "warmup_steps": 1}
    assert rates(4, 2, **config) == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0, 1.0, 1.0]
    restarted = rates(2, 3, name="cosine", interval="step", restart_epochs=1)
    assert restarted[:3] == restarted[3:] and len(set(restarted)) == 3


def test_plateau_is_torchs() -> None:
    values = [3.0, 2.0, 2.5, 2.5, 2.5, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]
    keys = {"name": "plateau", "gamma": 0.5, "patience": 1, "end_factor": 0.2, "direction": "minimize"}
    seen = []
    for make in (
        lambda o: make_schedule(ScheduleConfig.model_validate(keys), o, 11),
        lambda o: lr_scheduler.ReduceLROnPlateau(o, factor=0.5, patience=1, min_lr=0.4),
    ):
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=2.0)
        schedule = make(optimizer)
        seen.append([optimizer.param_groups[0]["lr"] for value in values if schedule.step(value) is None])
    assert seen[0] == seen[1] and seen[0][-1] == 0.4


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"warmup_steps": 5}, "'warmup_steps' needs 'interval: step'; else give warmup_epochs"),
        ({"name": "cosine", "restart_steps": 5}, "'restart_steps' needs 'interval: step'"),
        ({"name": {"pick": ["cosine", "plateau"]}, "interval": "step"}, "'plateau' looks at a metric once an epoch"),
        ({"interval": "step", "restart_steps": 5, "restart_epochs": 5}, "not both"),
    ],
)
def test_keys_that_do_not_go_together(config: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        ScheduleConfig.model_validate(config)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (
            {"name": "cosine"},
            "'cosine' by step needs the number of steps in an epoch, and the training loader does not",
        ),
        ({"warmup_epochs": 1}, "'constant' by step needs the number of steps in an epoch"),
        ({"name": "cosine", "restart_steps": 0, "restart_epochs": None, "restart_mult": 0}, "'cosine' by step needs"),
        ({"name": "cosine", "restart_steps": 3, "restart_mult": 0}, "restart_mult should be at least 1"),
        ({"name": "plateau", "warmup_epochs": 1, "interval": "epoch"}, "plateau has no warm-up"),
        ({"name": "step", "step_size": 0}, "step_size: is 0; it should be at least 1"),
        ({"name": "polynomial", "power": -1}, "power: is -1.0; it should be at least 0"),
        ({"name": "plateau", "patience": -1, "interval": "epoch"}, "patience: is -1; it should be at least 0"),
        ({"name": "plateau", "gamma": 1.5, "interval": "epoch"}, "gamma: is 1.5; plateau needs a number"),
    ],
)
def test_schedules_that_can_not_be_made(config: dict[str, Any], said: str) -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1.0)
    with pytest.raises(ConfigError, match=said):
        make_schedule(ScheduleConfig.model_validate({"interval": "step", **config}), optimizer, 3)


def test_what_needs_no_end_needs_no_length() -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1.0)
    config = ScheduleConfig.model_validate({"name": "step", "interval": "step", "step_size": 2, "warmup_steps": 1})
    schedule = make_schedule(config, optimizer, 3, math.inf)
    assert list(stepped(optimizer, schedule, 5)) == pytest.approx([0.5, 1.0, 1.0, 0.1, 0.1])


class Model(torch.nn.Module):
    """Norms of torch and of a user, biases under several names, and a frozen weight."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(2, 2)
        self.norm = torch.nn.BatchNorm1d(2)
        self.attention = torch.nn.MultiheadAttention(2, 1)
        self.mine = MyNorm()
        self.tied = self.linear
        self.frozen = torch.nn.Parameter(torch.zeros(1), requires_grad=False)


class MyNorm(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(2))
        self.inner = torch.nn.Linear(1, 1, bias=False)


@pytest.mark.parametrize(
    ("no_decay", "spared"),
    [
        ([], set()),
        (["norm"], {"norm.weight", "norm.bias", "mine.scale"}),
        (["bias"], {"linear.bias", "norm.bias", "attention.in_proj_bias", "attention.out_proj.bias"}),
        (
            ["norm", "bias"],
            {
                "norm.weight",
                "mine.scale",
                "linear.bias",
                "norm.bias",
                "attention.in_proj_bias",
                "attention.out_proj.bias",
            },
        ),
    ],
    ids=["nothing", "norms", "biases", "both"],
)
def test_what_has_no_weight_decay(no_decay: list[Any], spared: set[str]) -> None:
    model = Model()
    config = OptimizerConfig(weight_decay=0.3, no_decay=no_decay)
    optimizer = make_optimizer(config, parameter_groups(model, no_decay))
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    found = {names[id(p)]: group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    assert found.keys() == {name for name, p in model.named_parameters() if p.requires_grad}
    assert {name for name, decay in found.items() if decay == 0} == spared
    assert set(found.values()) == {0.3, 0.0} if no_decay else {0.3}


@pytest.mark.parametrize("target", ["torch.optim:ASGD", "torch.optim:Adafactor", "targets.py:Signs"])
def test_by_import_path(target: str) -> None:
    kind = load_target(target, HERE)
    config = OptimizerConfig(target=target, lr=0.05, params={"weight_decay": 0.1})
    found = trained(lambda weights: make_optimizer(config, weights, HERE))
    assert torch.equal(found, trained(lambda weights: kind(weights, lr=0.05, weight_decay=0.1)))
    assert isinstance(try_optimizer(config, [torch.nn.Parameter(torch.zeros(2))], HERE), kind)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"target": "torch.optim:LBFGS"}, "target: torch.optim:LBFGS needs a closure in every step"),
        ({"target": "torch.nn:Linear"}, r"torch.nn:Linear should be a torch\.optim\.Optimizer class"),
        ({"target": "torch.optim:Lion"}, "'torch.optim' has no 'Lion'"),
        ({"target": "torch.optim:Rprop", "momentum": 0.9}, r"optimizer\.momentum: torch.optim:Rprop does not take it"),
        ({"target": "torch.optim:SGD", "params": {"mass": 1}}, r"optimizer\.params\.mass: torch.optim:SGD does not"),
        ({"target": "torch.optim:Rprop", "no_decay": ["bias"]}, "no_decay: torch.optim:Rprop has no weight decay"),
        ({"target": "targets.py:Still", "lr": 0.5}, r"optimizer\.lr: targets.py:Still does not take it"),
    ],
)
def test_import_paths_that_are_refused(config: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        make_optimizer(OptimizerConfig.model_validate(config), [torch.nn.Parameter(torch.ones(1))], HERE)


def test_an_optimizer_without_a_rate_gets_none() -> None:
    made = make_optimizer(OptimizerConfig(target="targets.py:Still"), [torch.nn.Parameter(torch.ones(1))], HERE)
    assert "lr" not in made.defaults


def test_a_name_and_a_path_are_too_much() -> None:
    with pytest.raises(ValueError, match="give 'name' or 'target', not both"):
        OptimizerConfig(name="sgd", target="torch.optim:SGD")
