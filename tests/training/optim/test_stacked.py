"""Members that step together go where torch takes each of them alone."""

import copy
import warnings
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from nasflow.training.optim import rules
from nasflow.training.optim.stacked import Clip, Stack, StackedOptimizer
from tests.training.optim.units import CHANNELS_LAST, Layer, Make, Unit, same_state

RATES = st.sampled_from([0.0, 1e-3, 0.02, 0.1])
SHAPES = st.sampled_from([(), (1,), (16,), (5,), (3, 7), (4, 8), CHANNELS_LAST])
CLIPS = st.none() | st.builds(Clip, st.sampled_from([0.05, 1.0, 50.0]), st.sampled_from(["norm", "value"]))

SGD = st.fixed_dictionaries(
    {"lr": RATES, "momentum": st.sampled_from([0.0, 0.9, 0.5]), "weight_decay": st.sampled_from([0.0, 0.1, 0.3])},
    optional={"dampening": st.just(0.25), "nesterov": st.just(True), "maximize": st.just(True)},
).filter(lambda o: not o.get("nesterov") or (o["momentum"] > 0 and "dampening" not in o))
ADAM = st.fixed_dictionaries(
    {"lr": RATES, "weight_decay": st.sampled_from([0.0, 0.1, 0.3])},
    optional={
        "betas": st.sampled_from([(0.9, 0.999), (0.5, 0.9), (0.0, 0.99)]),
        "eps": st.sampled_from([1e-8, 1e-3]),
        "fused": st.just(True),
        "amsgrad": st.just(True),
    },
)
RMSPROP = st.fixed_dictionaries(
    {"lr": RATES, "weight_decay": st.sampled_from([0.0, 0.1]), "centered": st.booleans()},
    optional={"alpha": st.sampled_from([0.9, 0.4]), "momentum": st.sampled_from([0.9, 0.2]), "eps": st.just(1e-3)},
)
ADAGRAD = st.fixed_dictionaries(
    {"lr": RATES, "weight_decay": st.sampled_from([0.0, 0.1]), "lr_decay": st.sampled_from([0.0, 0.3])},
    optional={
        "initial_accumulator_value": st.just(0.5),
        "eps": st.just(1e-3),
        "maximize": st.just(True),
        "foreach": st.booleans(),
    },
)


def made(kind: type[torch.optim.Optimizer], **options: Any) -> Make:
    return lambda parameters: kind(parameters, **options)  # type: ignore[call-arg]


def grouped(kind: type[torch.optim.Optimizer], first: dict[str, Any], **options: Any) -> Make:
    """The first parameter has hyper-parameters of its own."""
    return lambda ps: kind([{"params": ps[:1], **first}, {"params": ps[1:]}], **options)  # type: ignore[call-arg]


MAKES = st.one_of(
    SGD.map(lambda o: made(torch.optim.SGD, **o)),
    ADAM.map(lambda o: made(torch.optim.Adam, **o)),
    ADAM.map(lambda o: made(torch.optim.AdamW, **o)),
    RMSPROP.map(lambda o: made(torch.optim.RMSprop, **o)),
    ADAGRAD.map(lambda o: made(torch.optim.Adagrad, **o)),
    st.builds(lambda first: grouped(torch.optim.Adagrad, first, lr=0.1, lr_decay=0.2), ADAGRAD),
    st.builds(lambda first, o: grouped(torch.optim.AdamW, first, **o), ADAM, ADAM),
    st.builds(lambda first: grouped(torch.optim.SGD, first, lr=0.1, momentum=0.9), SGD),
    st.just(made(torch.optim.NAdam, lr=0.01)),
)


@st.composite
def layers_of(draw: st.DrawFn, members: int) -> list[Layer]:
    layers = []
    for _ in range(draw(st.integers(1, 4))):
        shape, rows = draw(SHAPES), draw(st.booleans())
        who = draw(st.permutations(range(members)))[: draw(st.integers(1, members))]
        layers += [Layer(shape, tuple(who))] if rows else [Layer(shape, (member,), rows=False) for member in who]
    return [*layers, *(Layer((2, 3), (member,), rows=False) for member in range(members))]


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_everyone_goes_where_torch_takes_it_alone(data: st.DataObject) -> None:
    members = data.draw(st.integers(1, 6))
    makes = [data.draw(MAKES) for _ in range(members)]
    clips = [data.draw(CLIPS) for _ in range(members)]
    unit = Unit(makes, data.draw(layers_of(members)), clips)
    for _ in range(data.draw(st.integers(2, 6))):
        absent = data.draw(st.sets(st.integers(0, len(unit.stacks) - 1), max_size=2))
        unit.give_grads(sorted(absent))
        unit.step()
        unit.check()
        change = data.draw(st.sampled_from(["nothing", "rates", "constants", "rebuild"]))
        if change == "rates":
            unit.set(lambda member, group: group.update(lr=group["lr"] * (0.5 + member)))
        elif change == "constants":
            unit.set(_change_constants)
        elif change == "rebuild":
            unit.rebuild()


def _change_constants(member: int, group: dict[str, Any]) -> None:
    group["weight_decay"] = 0.05 * member
    if "betas" in group:
        group["betas"] = (group["betas"][0], 0.99) if member % 2 else (0.9, 0.999)


@pytest.mark.parametrize("nesterov", [False, True])
def test_momentum(nesterov: bool) -> None:
    makes = [made(torch.optim.SGD, lr=0.1, momentum=momentum, nesterov=nesterov) for momentum in (0.9, 0.5)]
    unit = Unit(makes, [Layer((5, 3), (0, 1)), Layer((7,), (1,), rows=False)])
    for _ in range(3):
        unit.give_grads()
        unit.step()
        unit.check()


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW])
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_without_the_fused_kernel(
    kind: type[torch.optim.Optimizer], decay: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rules, "has_fused_adam", lambda *_: False)
    makes = [made(kind, lr=0.1 * i, weight_decay=decay * i) for i in range(3)]
    unit = Unit(makes, [Layer((5, 3), (0, 1, 2)), Layer((7,), (1,), rows=False)])
    for _ in range(4):
        unit.give_grads()
        unit.step()
    unit.check()


def test_a_device_without_memory_has_the_fused_kernel_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other members would be stepped by other arithmetic."""

    def full(*_: Any, **__: Any) -> None:
        raise torch.OutOfMemoryError

    rules.has_fused_adam.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(torch, "_fused_adamw_", full)
        with pytest.raises(torch.OutOfMemoryError):
            rules.has_fused_adam("cpu", torch.float32)
    assert rules.has_fused_adam("cpu", torch.float32)


LAYERS = [Layer((5, 3), (2, 0, 1)), Layer(CHANNELS_LAST, (0, 1, 2)), Layer((9,), (1,), rows=False)]
KINDS = {
    "sgd": made(torch.optim.SGD, lr=0.1, momentum=0.9, dampening=0.5),
    "adam": made(torch.optim.Adam, lr=0.1, weight_decay=0.1),
    "adamw": made(torch.optim.AdamW, lr=0.1),
    "adamw-betas": made(torch.optim.AdamW, lr=0.1, betas=(0.8, 0.9)),
    "adamw-fused": made(torch.optim.AdamW, lr=0.1, fused=True),
    "rmsprop": made(torch.optim.RMSprop, lr=0.1, momentum=0.9, centered=True),
    "adagrad": made(torch.optim.Adagrad, lr=0.1, weight_decay=0.1, initial_accumulator_value=0.1),
    "adagrad-decay": made(torch.optim.Adagrad, lr=0.1, lr_decay=0.3, eps=1e-6),
}


@pytest.mark.parametrize("kind", KINDS)
def test_goes_on_from_what_torch_saved(kind: str) -> None:
    unit = Unit([KINDS[kind]] * 3, LAYERS)
    for member, steps in ((0, 3), (1, 5)):  # the third begins
        for step in range(steps):
            for twin in unit.twins[member]:
                twin.solo.grad = twin.draw(100 + step)
            unit.solo[member].step()
        unit.joint[member].load_state_dict(copy.deepcopy(unit.solo[member].state_dict()))
        with torch.no_grad():
            for twin in unit.twins[member]:
                twin.joint.copy_(twin.solo)
    unit.rebuild()
    unit.check()
    for _ in range(3):
        unit.give_grads()
        unit.step()
        unit.check()


@pytest.mark.parametrize("kind", KINDS)
def test_leaves_with_its_own_optimizer_or_its_state_dict(kind: str) -> None:
    unit = Unit([KINDS[kind]] * 3, LAYERS)
    for _ in range(3):
        unit.give_grads()
        unit.step()
    copies = [nn.Parameter(twin.joint.detach().clone()) for twin in unit.twins[1]]
    loaded = KINDS[kind](copies)
    loaded.load_state_dict(copy.deepcopy(unit.joint[1].state_dict()))
    for step in range(3):
        for parameter, twin in zip(copies, unit.twins[1], strict=True):
            parameter.grad, twin.joint.grad, twin.solo.grad = (twin.draw(100 + step) for _ in range(3))
        for optimizer in (loaded, unit.joint[1], unit.solo[1]):
            optimizer.step()
    unit.check()
    same_state(loaded.state_dict(), unit.joint[1].state_dict(), tolerance=0)
    for parameter, twin in zip(copies, unit.twins[1], strict=True):
        assert torch.equal(parameter, twin.joint)


@pytest.mark.parametrize("kind", ["adam", "adamw-betas", "adagrad-decay"])
def test_counts_that_a_hook_has_set(kind: str) -> None:
    unit = Unit([KINDS[kind]] * 3, LAYERS)
    for step in range(6):
        if step == 3:
            for optimizer in (unit.joint[1], unit.solo[1]):
                for state in optimizer.state.values():
                    state["step"].fill_(1)
            unit.optimizer.reread()
        unit.give_grads()
        unit.step()
        unit.check()


@pytest.mark.parametrize("how", ["cleared", "replaced", "counts"])
@pytest.mark.parametrize("kind", ["adam", "sgd", "adagrad-decay", "adamw-fused"])
def test_states_that_a_hook_has_changed(kind: str, how: str) -> None:
    """Of one member of three."""
    unit = Unit([KINDS[kind]] * 3, LAYERS)
    for step in range(6):
        if step == 3:
            for optimizer in (unit.joint[1], unit.solo[1]):
                if how == "cleared":
                    optimizer.state.clear()
                for state in optimizer.state.values():
                    if how == "replaced":
                        state.update({name: torch.zeros_like(value) for name, value in state.items()})
                    elif "step" in state:
                        state["step"].fill_(1)
        unit.optimizer.take_over()
        unit.give_grads()
        unit.step()
        unit.check()


def test_counts_have_the_default_type_as_in_torch() -> None:
    torch.set_default_dtype(torch.float64)
    try:
        unit = Unit([KINDS["adamw"]] * 3, LAYERS)
        unit.give_grads()
        unit.step()
        unit.check()
    finally:
        torch.set_default_dtype(torch.float32)


def test_types_may_differ_between_stacks() -> None:
    parameters = [nn.Parameter(torch.ones(3, dtype=dtype)) for dtype in (torch.float32, torch.float64)]
    twins = [nn.Parameter(parameter.detach().clone()) for parameter in parameters]
    stacks = [Stack(parameter, (parameter,), (0,), rows=False) for parameter in parameters]
    joint, solo = (torch.optim.AdamW(of, lr=0.1) for of in (parameters, twins))
    optimizer = StackedOptimizer([joint], stacks, [Clip(0.5)])
    for i, parameter in enumerate([*parameters, *twins]):
        parameter.grad = torch.full_like(parameter, 1.0 + i % 2)
    optimizer.step()
    torch.nn.utils.clip_grad_norm_(twins, 0.5)
    solo.step()
    torch.testing.assert_close(parameters, twins)


class MyAdam(torch.optim.Adam):
    """Might do anything."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.grad.mul_(-1)
        return super().step(closure)


def _hooked(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    optimizer.register_step_post_hook(lambda *_: parameters[0].data.add_(1))
    return optimizer


@pytest.mark.parametrize(
    "make",
    [
        made(torch.optim.NAdam, lr=0.1),
        made(torch.optim.Adamax, lr=0.1),
        made(torch.optim.Adam, lr=0.1, amsgrad=True),
        made(torch.optim.SGD, lr=0.1, momentum=0.9, maximize=True),
        made(MyAdam, lr=0.1),
        _hooked,
    ],
    ids=["nadam", "adamax", "amsgrad", "maximize", "subclass", "hook"],
)
def test_other_optimizers_step_on_their_own(make: Make) -> None:
    unit = Unit([make, made(torch.optim.Adam, lr=0.1), make], LAYERS, [Clip(0.1), None, Clip(0.1, "value")])
    for _ in range(3):
        unit.give_grads()
        unit.step()
        unit.check(tolerance=0, members=[0, 2])
        unit.check()
        assert all(twin.joint.grad is None for twin in unit.twins[0])


def test_low_precision_steps_on_its_own() -> None:
    unit = Unit([made(torch.optim.AdamW, lr=0.1)] * 3, LAYERS, dtype=torch.bfloat16)
    unit.give_grads()
    unit.step()
    unit.check(tolerance=0)


def test_the_failure_of_an_optimizer_is_its_members_own() -> None:
    failures: list[tuple[int, Exception]] = []
    makes = [made(torch.optim.LBFGS), made(torch.optim.SGD, lr=0.1)]  # LBFGS wants a closure
    layers = [Layer((5, 3), (0, 1))]
    unit = Unit(makes, layers, failed=lambda member, error: failures.append((member, error)))
    before = unit.twins[1][0].joint.detach().clone()
    unit.give_grads()
    unit.optimizer.step()
    assert [(member, type(error)) for member, error in failures] == [(0, TypeError)]
    assert not torch.equal(before, unit.twins[1][0].joint)
    assert unit.twins[0][0].joint.grad is None
    loud = Unit(makes, layers)
    loud.give_grads()
    with pytest.raises(TypeError, match="closure"):
        loud.optimizer.step()


def test_schedules_do_not_warn_and_are_followed_after_refresh() -> None:
    unit = Unit([KINDS["sgd"], KINDS["adamw"], KINDS["rmsprop"]], LAYERS)
    schedules = [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5) for optimizer in (*unit.joint, *unit.solo)]
    unit.rebuild()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3):
            unit.give_grads()
            unit.step()
            for schedule in schedules:
                schedule.step()
            unit.optimizer.refresh()
            unit.check()
    assert not unit.optimizer._alone


def test_gradients_may_lie_otherwise_than_parameters() -> None:
    unit = Unit([KINDS["adamw"]] * 3, LAYERS)
    for _ in range(2):
        unit.give_grads()
        for stack in unit.stacks:
            grad = stack.tensor.grad
            assert grad is not None
            stack.tensor.grad = grad.transpose(0, -1).contiguous().transpose(0, -1)
        unit.step()
    unit.check()


def test_zero_grad() -> None:
    unit = Unit([KINDS["adamw"], made(torch.optim.NAdam)], [Layer((3,), (0, 1)), Layer((2,), (1,), rows=False)])
    unit.give_grads()
    unit.optimizer.zero_grad()
    assert all(stack.tensor.grad is None for stack in unit.stacks)


def test_a_parameter_that_nobody_trains_is_left_alone() -> None:
    unit = Unit([lambda parameters: torch.optim.SGD(parameters[1:], lr=0.1), KINDS["sgd"], KINDS["adam"]], LAYERS)
    before = unit.twins[0][0].joint.detach().clone()
    unit.clips = [Clip(0.1)] * 3
    unit.rebuild()
    unit.give_grads()
    unit.twins[0][0].solo.grad = None
    unit.step()
    unit.check()
    assert torch.equal(unit.twins[0][0].joint, before)


def test_refuses_what_it_would_not_train() -> None:
    parameters = [nn.Parameter(torch.zeros(3)), nn.Parameter(torch.zeros(2))]
    stack = Stack(parameters[0], (parameters[0],), (0,), rows=False)
    with pytest.raises(ValueError, match=r"member 0 trains a parameter \(2,\) that is in no stack"):
        StackedOptimizer([torch.optim.SGD(parameters)], [stack], [None])
    parameters[1].requires_grad_(requires_grad=False)
    StackedOptimizer([torch.optim.SGD(parameters)], [stack], [None])


def test_refuses_rows_with_gaps() -> None:
    tensor = torch.zeros(4, 3)[::2].requires_grad_()
    parameters = [nn.Parameter(row) for row in tensor.detach()]
    optimizers = [torch.optim.SGD([parameter]) for parameter in parameters]
    with pytest.raises(ValueError, match="are not one after the other in memory"):
        StackedOptimizer(optimizers, [Stack(tensor, tuple(parameters), (0, 1))], [None, None])
