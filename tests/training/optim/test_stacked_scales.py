"""Members with loss scales of their own go where `torch.amp.GradScaler` takes each of them alone."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nasflow.errors import TrialError
from nasflow.training.member import loss_scale
from nasflow.training.member.loss_scale import LossScale
from nasflow.training.optim.stacked_scales import StackedScales
from tests.training.optim.test_stacked import CLIPS, layers_of, made
from tests.training.optim.units import Unit

MAKES = st.sampled_from(
    [
        made(torch.optim.SGD, lr=0.1, momentum=0.9, weight_decay=0.1),
        made(torch.optim.Adam, lr=0.02, amsgrad=True),
        made(torch.optim.AdamW, lr=0.02, betas=(0.5, 0.9)),
        made(torch.optim.RMSprop, lr=0.02, momentum=0.2),
        made(torch.optim.NAdam, lr=0.01),  # stepped by itself
    ]
)


def step_as_torch(unit: Unit, scalers: list[torch.amp.GradScaler]) -> None:
    """Step the members' twins, each by a scaler of torch's."""
    for scaler, optimizer, twins, clip in zip(scalers, unit.solo, unit.twins, unit.clips, strict=True):
        parameters = [twin.solo for twin in twins if twin.solo.grad is not None]
        if not parameters:
            continue  # torch's scaler raises
        scaler.unscale_(optimizer)
        if clip is not None and clip.algorithm == "norm":
            torch.nn.utils.clip_grad_norm_(parameters, clip.limit)
        elif clip is not None:
            torch.nn.utils.clip_grad_value_(parameters, clip.limit)
        scaler.step(optimizer)
        scaler.update()


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_everyone_goes_where_torch_takes_it_alone(data: st.DataObject) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loss_scale, "_GROWTH_INTERVAL", 3)
        members = data.draw(st.integers(1, 5))
        makes, clips = [data.draw(MAKES) for _ in range(members)], [data.draw(CLIPS) for _ in range(members)]
        unit = Unit(makes, data.draw(layers_of(members)), clips)
        mine = [LossScale() for _ in range(members)]
        theirs = [torch.amp.GradScaler("cpu", growth_interval=3) for _ in range(members)]
        for scaler in theirs:
            scaler.scale(torch.ones(()))  # it makes its tensors
        stacked = StackedScales(unit.stacks)
        for _ in range(data.draw(st.integers(2, 8))):
            faults = [data.draw(st.sampled_from([1.0, 1.0, 1.0, math.inf, math.nan])) for _ in range(members)]
            factors = {member: fault * mine[member].value for member, fault in enumerate(faults)}
            unit.give_grads(sorted(data.draw(st.sets(st.integers(0, len(unit.stacks) - 1), max_size=2))), factors)
            overflows = stacked.unscale([scale.value for scale in mine])
            unit.optimizer.step(skipped=[member for member, skips in overflows.items() if skips])
            unit.steps += 1
            for member, skips in overflows.items():
                mine[member].update(skips)
            step_as_torch(unit, theirs)
            unit.check()
            assert [scale.value for scale in mine] == [scaler.get_scale() for scaler in theirs]


@pytest.mark.parametrize("sparse", [False, True])
def test_gradients_have_the_bits_of_torchs(sparse: bool) -> None:
    layer = torch.nn.Embedding(7, 5, sparse=sparse)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    scaler, scale = torch.amp.GradScaler("cpu"), LossScale()
    for token in (3, 5):
        scaler.scale(layer(torch.tensor([1, token, 1])).pow(2).sum()).backward()
    assert layer.weight.grad is not None
    mine = layer.weight.grad.clone()
    assert not scale.unscale([mine, torch.zeros(0)])
    scaler.unscale_(optimizer)
    assert torch.equal(mine.to_dense(), layer.weight.grad.to_dense())


def test_its_state_goes_on() -> None:
    one, other = LossScale(), LossScale()
    for overflows in (True, False, False):
        one.update(overflows)
    other.load_state_dict(one.state_dict())
    assert other.state_dict() == one.state_dict() == {"scale": 32768.0, "finite_steps": 2}


def test_a_scale_that_is_not_the_cause_is_the_trials_failure() -> None:
    scale = LossScale()
    with pytest.raises(TrialError, match="gradients are not finite, whatever the losses are scaled by"):
        for _ in range(40):
            scale.update(True)
    assert scale.value < 1e-4


def test_it_does_not_grow_beyond_what_a_number_holds() -> None:
    scale = LossScale()
    scale.load_state_dict({"scale": 2.0**127, "finite_steps": 1999})
    scale.update(False)
    assert scale.state_dict() == {"scale": 2.0**127, "finite_steps": 0}
