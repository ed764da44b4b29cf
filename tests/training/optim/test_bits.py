"""A member's bits follow from that member alone, whoever steps beside it."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from nasflow.native import library
from nasflow.training.optim import parameter_rows
from nasflow.training.optim.stacked import Clip, Stack, StackedOptimizer
from tests.training.optim.units import CHANNELS_LAST, Layer, Make, Unit


def made(kind: type[torch.optim.Optimizer], **options: Any) -> Make:
    return lambda parameters: kind(parameters, **options)  # type: ignore[call-arg]


def split(first: dict[str, Any]) -> Make:
    return lambda ps: torch.optim.AdamW([{"params": ps[:1], **first}, {"params": ps[1:]}], lr=0.07)


MAKES = [
    made(torch.optim.AdamW, lr=0.013),
    made(torch.optim.AdamW, lr=0.13, weight_decay=0.0),
    made(torch.optim.AdamW, lr=0.013, betas=(0.8, 0.99)),
    made(torch.optim.Adam, lr=0.02),
    made(torch.optim.Adam, lr=0.03, weight_decay=0.2),
    made(torch.optim.SGD, lr=0.3),
    made(torch.optim.SGD, lr=0.1, momentum=0.9, weight_decay=0.1),
    made(torch.optim.SGD, lr=0.2, momentum=0.7, nesterov=True),
    made(torch.optim.SGD, lr=0.2, momentum=0.9, dampening=0.5),
    made(torch.optim.RMSprop, lr=0.01, momentum=0.3),
    made(torch.optim.RMSprop, lr=0.02, centered=True, weight_decay=0.1),
    made(torch.optim.Adagrad, lr=0.05, weight_decay=0.1),
    made(torch.optim.Adagrad, lr=0.1, lr_decay=0.2),
    made(torch.optim.NAdam, lr=0.01),
    split({"betas": (0.5, 0.6)}),
]
CLIPS = [None, Clip(0.3), Clip(0.2, "value")]
SIZES = st.integers(1, 40).map(lambda size: (size,)) | st.sampled_from([(3, 11), (129, 7), (), CHANNELS_LAST])


def bits(unit: Unit, member: int) -> list[torch.Tensor]:
    """All a member is, as integers."""
    kept = unit.joint[member].state_dict()["state"].values()
    tensors = [*(twin.joint for twin in unit.twins[member]), *(value for of in kept for value in of.values())]
    return [_as_integers(tensor) for tensor in tensors if isinstance(tensor, torch.Tensor)]


def _as_integers(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().clone().view(torch.int32 if tensor.dtype == torch.float32 else torch.int64)


def same(one: Sequence[torch.Tensor], other: Sequence[torch.Tensor]) -> bool:
    return len(one) == len(other) and all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@settings(max_examples=50, deadline=None)
@given(data=st.data())
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_bits_do_not_depend_on_who_else_is_there(dtype: torch.dtype, data: st.DataObject) -> None:
    members = data.draw(st.integers(2, 9))
    which = data.draw(st.lists(st.integers(0, len(MAKES) - 1), min_size=members, max_size=members))
    clips = [CLIPS[i % 3 if data.draw(st.booleans()) else 0] for i in which]
    shapes = data.draw(st.lists(SIZES, min_size=1, max_size=3))
    everyone = [data.draw(st.permutations(range(members))) for _ in shapes]
    left = data.draw(st.permutations(range(members)))[: data.draw(st.integers(1, members - 1))]
    orders = [[member for member in of if member in left] for of in everyone]
    units = []
    for who, order in ((list(range(members)), everyone), (sorted(left), orders)):
        units.append(
            Unit(
                [MAKES[which[member]] for member in who],
                [Layer(s, tuple(who.index(m) for m in of)) for s, of in zip(shapes, order, strict=True)],
                [clips[member] for member in who],
                dtype,
                numbers=who,
            )
        )
    for _ in range(3):
        for unit in units:
            unit.give_grads()
            unit.step()
    for place, member in enumerate(sorted(left)):
        assert same(bits(units[0], member), bits(units[1], place)), f"member {member} ({which[member]})"


@pytest.mark.parametrize("clip", CLIPS, ids=str)
@pytest.mark.parametrize("shape", [(7,), (64, 129)], ids=str)
def test_survivors_of_an_eviction_keep_their_bits(shape: tuple[int, ...], clip: Clip | None) -> None:
    rates = [0.01, 0.01, 1e6, 0.01, 0.01]  # without the third, all have one rate
    makes = [made(torch.optim.AdamW, lr=rate) for rate in rates]
    runs = []
    for evicted in (False, True):
        unit = Unit(makes, [Layer(shape, (0, 1, 2, 3, 4))], [clip] * 5, torch.float32)
        for step in range(6):
            if evicted and step == 3:
                unit.evict(2)
            unit.give_grads()
            unit.step()
        runs.append(unit)
    for whole, place in ((0, 0), (1, 1), (3, 2), (4, 3)):
        assert same(bits(runs[0], whole), bits(runs[1], place))


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e30])
@pytest.mark.parametrize("make", range(len(MAKES)))
def test_a_lost_member_does_not_touch_its_neighbours(make: int, bad: float) -> None:
    layers = [Layer((5, 3), (0, 1, 2)), Layer((7,), (2, 1, 0)), Layer((3,), (1,), rows=False)]
    runs = []
    for factor in (1.0, bad):
        unit = Unit([MAKES[make]] * 3, layers, [Clip(0.3)] * 3, torch.float32)
        for step in range(3):
            unit.give_grads(factors={1: factor if step else 1.0})
            unit.step()
        runs.append(unit)
    assert same(bits(runs[0], 0), bits(runs[1], 0))
    assert same(bits(runs[0], 2), bits(runs[1], 2))
    assert not same(bits(runs[0], 1), bits(runs[1], 1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("make", range(len(MAKES)))
def test_columns_as_wide_as_parameters_change_no_bits(
    make: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU, where it saves launches."""
    monkeypatch.setattr(library, "_library", lambda: None)
    layers = [Layer((5, 3), (0, 1, 2)), Layer((7,), (2, 1, 0)), Layer((3,), (1,), rows=False)]
    runs = []
    for wide in (False, True):
        monkeypatch.setattr(parameter_rows, "is_wide", lambda slabs, wide=wide: wide)
        unit = Unit([MAKES[make], MAKES[make], MAKES[make - 1]], layers, [None, Clip(0.3), None], dtype)
        for step in range(4):
            for group in (group for optimizer in unit.joint for group in optimizer.param_groups):
                group["lr"] /= 1 + step
            unit.optimizer.refresh()
            unit.give_grads()
            unit.step()
        runs.append(unit)
    assert all(same(bits(runs[0], member), bits(runs[1], member)) for member in range(3))


@pytest.mark.parametrize("decay", [[0.1, 0.0], [0.0, 0.0]], ids=["mixed", "none"])
def test_what_does_not_decay_may_be_infinite(decay: list[float]) -> None:
    """A mask of minus infinity, kept as a parameter."""
    makes = [made(torch.optim.SGD, lr=0.1, weight_decay=d) for d in decay]
    unit = Unit(makes, [Layer((4,), (0, 1))])
    for twin in unit.twins[1]:
        with torch.no_grad():
            twin.joint[0] = twin.solo[0] = float("-inf")
    unit.give_grads()
    unit.step()
    unit.check()
    assert unit.twins[1][0].joint[0] == float("-inf")


def test_a_learning_rate_of_zero_changes_nothing() -> None:
    makes = [made(kind, lr=0.0) for kind in (torch.optim.Adam, torch.optim.RMSprop, torch.optim.SGD)]
    makes.append(made(torch.optim.Adam, lr=0.0, betas=(0.5, 0.5)))
    unit = Unit(makes, [Layer((3,), (0, 1, 2, 3))])
    before = [twin.joint.detach().clone() for of in unit.twins for twin in of]
    unit.give_grads(factors=dict.fromkeys(range(4), 0.0))
    unit.step()
    unit.check()
    assert same(before, [twin.joint for of in unit.twins for twin in of])


def test_gradients_really_come_from_autograd() -> None:
    """Two linear models side by side against each alone, through a loss and backward."""
    torch.manual_seed(0)
    models = [nn.Linear(3, 2, dtype=torch.float64) for _ in range(4)]
    weight = torch.stack([model.weight.detach() for model in models[:2]]).requires_grad_()
    bias = torch.stack([model.bias.detach() for model in models[:2]]).requires_grad_()
    for twin, model, w, b in zip(models[2:], models[:2], weight.detach(), bias.detach(), strict=True):
        twin.load_state_dict(model.state_dict())
        model.weight.data, model.bias.data = w, b
    optimizers = [torch.optim.AdamW(model.parameters(), lr=0.1 + 0.1 * i) for i, model in enumerate(models[:2])]
    alone = [torch.optim.AdamW(model.parameters(), lr=0.1 + 0.1 * i) for i, model in enumerate(models[2:])]
    stacks = [
        Stack(weight, (models[0].weight, models[1].weight), (0, 1)),
        Stack(bias, (models[0].bias, models[1].bias), (0, 1)),
    ]
    stacked = StackedOptimizer(optimizers, stacks, [Clip(0.5), None])
    for _ in range(5):
        x = torch.randn(8, 3, dtype=torch.float64)
        stacked.zero_grad()
        out = torch.baddbmm(bias.unsqueeze(1), x.expand(2, 8, 3), weight.transpose(1, 2))
        out.square().mean((1, 2)).sum().backward()
        stacked.step()
        for i, (model, optimizer) in enumerate(zip(models[2:], alone, strict=True)):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            if i == 0:
                torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
        for one, other in zip(models[:2], models[2:], strict=True):
            torch.testing.assert_close(one.state_dict(), other.state_dict(), rtol=1e-12, atol=1e-12)
