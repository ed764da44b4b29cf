"""A state that is laid out once has at every checkpoint what `state_dict` has, whatever changes in between."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import torch
from pytorch_lightning import LightningModule
from torch import nn
from torchmetrics.classification import MulticlassAccuracy

from nasflow.checkpoint.layout import LaidOut
from nasflow.checkpoint.packing import Packer, unpack
from nasflow.training.member.saved_layout import SavedLayout
from tests.checkpoint.test_packing import same


class Net(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.ReLU(), nn.Linear(3, 2, bias=False))
        self.scale = nn.Parameter(torch.ones(1))
        self.register_buffer("seen", torch.zeros(2, dtype=torch.int64), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.model(x) * self.scale


def packed(weights: Any, optimizer: Any) -> Any:
    packer = Packer()
    text, flat = packer.pack([weights, optimizer]), packer.flat()
    return unpack(text, {name: flat[at.flat].narrow(0, at.start, at.length) for name, at in packer.blocks.items()})


def step(net: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    with suppress(RuntimeError, AttributeError, ValueError):  # some changes leave nothing that could be trained
        net(torch.randn(5, 4)).square().sum().backward()
        optimizer.step()


def check(layout: SavedLayout, net: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[Any, Any]:
    """Return what the layout gave, which holds the same as the state dicts."""
    given = layout.weights(net), layout.optimizer(0, optimizer)
    assert same(packed(*given), packed(dict(net.state_dict()), optimizer.state_dict()))
    return given


def is_laid(given: tuple[Any, Any]) -> tuple[bool, bool]:
    return isinstance(given[0], LaidOut), isinstance(given[1]["state"], LaidOut)


OPTIMIZERS: dict[str, Callable[[nn.Module], torch.optim.Optimizer]] = {
    "adam": lambda net: torch.optim.Adam(net.parameters(), 1e-2),
    "sgd": lambda net: torch.optim.SGD(net.parameters(), 1e-2),
    "momentum": lambda net: torch.optim.SGD(net.parameters(), 1e-2, momentum=0.9),
    "groups": lambda net: torch.optim.AdamW(
        [{"params": [p], "lr": 0.1 / (i + 1)} for i, p in enumerate(net.parameters())]
    ),
    "tensor rate": lambda net: torch.optim.Adam(net.parameters(), torch.tensor(1e-2), capturable=False, foreach=False),
    "named": lambda net: torch.optim.Adagrad(net.named_parameters(), 1e-2),
    "rprop": lambda net: torch.optim.Rprop(net.parameters(), 1e-2),
    "asgd": lambda net: torch.optim.ASGD(net.parameters(), 1e-2),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_checkpoint_of_plain_modules(name: str) -> None:
    torch.manual_seed(0)
    net, layout = Net(), SavedLayout(after=0)
    optimizer = OPTIMIZERS[name](net)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    for _ in range(5):
        assert is_laid(check(layout, net, optimizer)) == (True, True)
        step(net, optimizer)
        schedule.step()
        assert same(packed(layout.scalars("s", state := schedule.state_dict()), 0), [state, 0])


class Kept(nn.Linear):
    def get_extra_state(self) -> Any:
        return {"calls": 3}


CHANGES: dict[str, Callable[[Any, torch.optim.Optimizer], Any]] = {
    "weights replaced": lambda net, _: setattr(net.model[0].weight, "data", torch.randn(3, 4)),
    "parameter replaced": lambda net, _: setattr(net.model[0], "weight", nn.Parameter(torch.randn(3, 4))),
    "larger": lambda net, _: setattr(net.model[0], "weight", nn.Parameter(torch.randn(3, 4, 2))),
    "double": lambda net, _: net.double(),
    "another buffer": lambda net, _: setattr(net.model[1], "running_mean", torch.zeros(3).double()),
    "a None moves": lambda net, _: (
        setattr(net.model[1], "running_var", net.model[1].running_mean),
        setattr(net.model[1], "running_mean", None),
    ),
    "a layer more": lambda net, _: net.model.append(nn.Linear(2, 2)),
    "another layer": lambda net, _: net.model.__setitem__(3, nn.Linear(3, 2, bias=False)),
    "a layer less": lambda net, _: net.model.__delitem__(2),
    "a layer renamed": lambda net, _: net.add_module("head", net._modules.pop("model")),
    "bias dropped": lambda net, _: setattr(net.model[0], "bias", None),
    "bias added": lambda net, _: setattr(net.model[3], "bias", nn.Parameter(torch.ones(2))),
    "buffer added": lambda net, _: net.register_buffer("more", torch.ones(2)),
    "buffer saved": lambda net, _: net.register_buffer("seen", torch.ones(2)),
    "buffer not saved": lambda net, _: net.model[1].register_buffer("running_var", torch.ones(3), persistent=False),
    "buffer None": lambda net, _: setattr(net, "seen", None),
    "frozen, no parameter": lambda net, _: net.model[0]._parameters.update(bias=torch.zeros(3)),
    "hook": lambda net, _: net.model[0]._register_state_dict_hook(
        lambda module, state, prefix, meta: state.update({f"{prefix}hooked": torch.ones(1)})
    ),
    "public hook": lambda net, _: net.register_state_dict_post_hook(lambda module, state, prefix, meta: state.clear()),
    "pruned": lambda net, _: torch.nn.utils.prune.l1_unstructured(net.model[0], "weight", 0.5),
    "parametrized": lambda net, _: torch.nn.utils.parametrizations.weight_norm(net.model[0]),
    "spectral": lambda net, _: torch.nn.utils.spectral_norm(net.model[0]),
    "extra state": lambda net, _: setattr(net, "late", Kept(2, 2)),
    "tied": lambda net, _: setattr(net, "again", net.model[3]),
    "tied memory": lambda net, _: setattr(net.model[1].weight, "data", net.model[1].bias.data),
    "frozen": lambda net, _: net.model[0].requires_grad_(False),
    "eval": lambda net, _: net.eval(),
    "states cleared": lambda _, optimizer: optimizer.state.clear(),
    "state dropped": lambda net, optimizer: optimizer.state.pop(net.scale),
    "state renamed": lambda net, optimizer: optimizer.state[net.scale].update(more=torch.ones(2)),
    "more than states": lambda net, optimizer: optimizer.state.update(step=3, sizes=[torch.ones(2), {"a": 1}]),
    "state a number": lambda net, optimizer: optimizer.state[net.scale].update(step=3),
    "state larger": lambda net, optimizer: optimizer.state[net.scale].update(exp_avg=torch.ones(3)),
    "states in another order": lambda net, optimizer: optimizer.state.update(
        {net.scale: optimizer.state.pop(net.scale)}
    ),
    "loaded": lambda _, optimizer: optimizer.load_state_dict(optimizer.state_dict()),
    "group added": lambda _, optimizer: optimizer.add_param_group({"params": [nn.Parameter(torch.ones(2))], "lr": 1}),
    "groups changed": lambda _, optimizer: optimizer.param_groups[0].update(lr=torch.tensor(0.5), betas=(0.5, 0.9)),
    "groups reversed": lambda _, optimizer: optimizer.param_groups[0]["params"].reverse(),
    "optimizer hook": lambda _, optimizer: optimizer.register_state_dict_post_hook(
        lambda own, state: state["param_groups"][0].update(hooked=1)
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_changes_are_noticed(name: str) -> None:
    torch.manual_seed(1)
    net, layout = Net(), SavedLayout(after=0)
    optimizer = OPTIMIZERS["adam"](net)
    for _ in range(2):
        step(net, optimizer)
        check(layout, net, optimizer)
    CHANGES[name](net, optimizer)
    check(layout, net, optimizer)
    step(net, optimizer)
    check(layout, net, optimizer)


@pytest.mark.parametrize("name", CHANGES)
def test_begun_in_that_way(name: str) -> None:
    net, layout = Net(), SavedLayout(after=0)
    optimizer = OPTIMIZERS["adam"](net)
    step(net, optimizer)
    CHANGES[name](net, optimizer)
    for _ in range(2):
        check(layout, net, optimizer)
        step(net, optimizer)


def test_modules_with_a_way_of_their_own() -> None:
    net, layout = Net(), SavedLayout(after=0)
    net.accuracy = MulticlassAccuracy(3)
    net.accuracy.persistent(True)
    optimizer = OPTIMIZERS["adam"](net)
    for _ in range(2):
        step(net, optimizer)
        net.accuracy(torch.tensor([1, 2]), torch.tensor([1, 1]))
        assert is_laid(check(layout, net, optimizer)) == (False, True)


@pytest.mark.parametrize("kind", ["frozen", "constant"])
def test_what_members_share_is_stored_once(kind: str) -> None:
    trunk, packer = nn.Linear(100, 10).requires_grad_(False), Packer()
    for _ in range(5):
        net = nn.ModuleDict({"head": nn.Linear(10, 2)})
        if kind == "frozen":
            net["trunk"] = trunk
        else:
            net.register_buffer("table", trunk.weight)
        packer.pack(SavedLayout(after=0).weights(net))
    assert sum(map(len, packer.flat().values())) == 1000 + (10 if kind == "frozen" else 0) + 5 * 22


def test_a_scripted_part() -> None:
    net, layout = nn.Sequential(torch.jit.script(nn.Linear(4, 3)), nn.Linear(3, 2)), SavedLayout(after=0)
    optimizer = OPTIMIZERS["adam"](net)
    for _ in range(2):
        step(net, optimizer)
        assert is_laid(check(layout, net, optimizer)) == (False, True)


class Wrapper(torch.optim.Optimizer):
    """Has no state, but that of another."""

    def __init__(self, inner: torch.optim.Optimizer):
        self.inner, self.param_groups = inner, inner.param_groups

    def state_dict(self) -> Any:
        return self.inner.state_dict()

    def step(self, closure: Any = None) -> Any:
        return self.inner.step(closure)


def test_an_optimizer_that_saves_another() -> None:
    net, layout = Net(), SavedLayout(after=0)
    optimizer = Wrapper(OPTIMIZERS["adam"](net))
    for _ in range(2):
        step(net, optimizer.inner)
        assert is_laid(check(layout, net, optimizer)) == (True, False)


@pytest.mark.parametrize("begins", [True, False])
def test_hooks_of_optimizers_are_called_once(begins: bool) -> None:
    net, layout, calls = Net(), SavedLayout(after=0), []
    optimizer = OPTIMIZERS["adam"](net)
    step(net, optimizer)
    if not begins:
        layout.optimizer(0, optimizer)
    optimizer.register_state_dict_post_hook(lambda own, state: calls.append(1) or {"mine": 3})
    for _ in range(3):
        assert layout.optimizer(0, optimizer) == {"mine": 3}
    assert len(calls) == 3


@pytest.mark.parametrize("state", [None, 3, [{"a": 1}], ["a"], {"a": 1}], ids=str)
def test_states_of_schedules(state: Any) -> None:
    layout = SavedLayout(after=0)
    for _ in range(2):
        assert packed(layout.scalars("schedule 0", state), 0) == [state, 0]


def test_a_layout_that_changes_each_time_is_given_up() -> None:
    net, layout = Net(), SavedLayout(after=0)
    optimizer = OPTIMIZERS["sgd"](net)
    for size in range(12):
        net.scale.data = torch.ones(1 + size, 1)
        assert is_laid(check(layout, net, optimizer))[0] == (size < 5)


def test_another_optimizer_and_another_module() -> None:
    layout = SavedLayout(after=0)
    for _ in range(2):
        net = Net()
        optimizer = OPTIMIZERS["adam"](net)
        step(net, optimizer)
        assert is_laid(check(layout, net, optimizer)) == (True, True)


def test_the_first_checkpoints_need_none() -> None:
    net, layout = Net(), SavedLayout(after=2)
    optimizer = torch.optim.Adam(net.parameters())
    history: list[dict[str, float]] = []
    for number in range(4):
        step(net, optimizer)
        assert is_laid(check(layout, net, optimizer)) == (number >= 2, number >= 2)
        assert same(packed(layout.scalars("s", state := {"a": number}), 0), [state, 0])
        assert same(packed(layout.lists(history=history), 0), [{"history": history}, 0])
        history.append({"loss": 1.0 / (number + 1)})
