"""Models without their numbers."""

import pytest
import torch
from torch import nn

from nasflow.space.meta_build import on_meta


def network() -> nn.Module:
    layers = [nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.Embedding(7, 4), nn.LSTM(4, 5), nn.MultiheadAttention(8, 2)]
    for layer in (nn.Linear(4, 3), nn.Linear(4, 3)):
        nn.init.xavier_uniform_(layer.weight)
        nn.init.trunc_normal_(layer.weight)
        nn.init.constant_(layer.bias, 0.5)
        layers.append(layer)
    return nn.ModuleList(layers)


def test_what_is_built_has_all_but_its_numbers():
    with on_meta():
        hollow = network()
    solid = network()
    found = {name: (t.shape, t.dtype, t.requires_grad) for name, t in hollow.state_dict(keep_vars=True).items()}
    assert found == {name: (t.shape, t.dtype, t.requires_grad) for name, t in solid.state_dict(keep_vars=True).items()}
    assert all(t.is_meta for t in hollow.state_dict().values())


def test_tensors_that_are_asked_for_elsewhere_are_filled():
    with on_meta():
        given = torch.full((3,), 9.0, device="cpu")
        nn.init.constant_(given, 2.0)
        drawn = torch.zeros(100, device="cpu").uniform_(1, 2)
    assert given.tolist() == [2.0] * 3
    assert drawn.min() >= 1


@pytest.mark.parametrize("fill", [nn.init.normal_, nn.init.zeros_, nn.init.kaiming_normal_, torch.Tensor.normal_])
def test_a_fill_gives_its_own_tensor(fill):
    with on_meta():
        tensor = torch.empty(4, 5)
        assert fill(tensor) is tensor


def test_outside_nothing_is_left_of_it():
    with pytest.raises(ZeroDivisionError), on_meta():
        raise ZeroDivisionError
    assert torch.empty(3).fill_(4.0).tolist() == [4.0] * 3
