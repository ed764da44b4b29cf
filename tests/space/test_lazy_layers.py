"""Lazy layers."""

import pytest
import torch
from torch import nn

from nasflow.space.lazy_layers import count_parameters, lazy_layers, make_by_weights


class Scale(nn.modules.lazy.LazyModuleMixin, nn.Module):
    """A user's own, which stays what it is."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.UninitializedParameter()

    def initialize_parameters(self, x: torch.Tensor) -> None:
        if self.has_uninitialized_params():
            self.factor.materialize(x.shape[1:])
            nn.init.ones_(self.factor)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.factor


def network() -> nn.Module:
    return nn.Sequential(
        nn.LazyConv2d(4, 3, groups=2, bias=False),
        nn.LazyBatchNorm2d(),
        nn.LazyConvTranspose2d(6, 3),
        nn.LazyInstanceNorm2d(affine=True),
        nn.LazyBatchNorm2d(affine=False),
        nn.LazyBatchNorm2d(track_running_stats=False),
        nn.Flatten(),
        Scale(),
        nn.LazyLinear(3),
    )


def test_layers_are_lazy_until_their_first_input() -> None:
    model = network()
    assert list(lazy_layers(model)) == ["0", "1", "2", "3", "4", "5", "7", "8"] and count_parameters(model) == 0
    model(torch.rand(2, 2, 6, 6))
    assert lazy_layers(model) == {}
    assert count_parameters(model) == sum(parameter.numel() for parameter in model.parameters())


def test_a_lazy_layer_without_weights_is_one_too() -> None:
    model = nn.LazyBatchNorm1d(affine=False, track_running_stats=False)
    assert list(lazy_layers(model)) == [""]
    make_by_weights(model)
    assert list(lazy_layers(model)) == [""]
    model(torch.rand(3, 2))
    assert lazy_layers(model) == {}


@pytest.mark.parametrize("mode", [True, False])
def test_weights_make_them(mode: bool) -> None:
    x = torch.rand(2, 2, 6, 6)
    made, model = network(), network().train(mode)
    made(x)
    made.train(mode)
    model.load_state_dict(made.state_dict())
    make_by_weights(model)
    assert list(lazy_layers(model)) == ["7"], "which may do anything with its input"
    assert repr(model) == repr(made)
    assert torch.equal(model(x), made(x)) and lazy_layers(model) == {}
