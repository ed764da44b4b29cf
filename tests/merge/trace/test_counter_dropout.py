"""Dropout by counters: its masks have the shares and the independence of drawn ones."""

import copy

import pytest
import torch
from torch import nn

from nasflow.merge.trace.counter_dropout import CounterDropout, Masks
from nasflow.seeds import derive_seed


def layer(rate: float, seed: int = 1, **options: bool) -> CounterDropout:
    """A layer in training."""
    whole = nn.Sequential(nn.Dropout(**options))
    CounterDropout.put_into(whole, lambda name: derive_seed(seed, name))
    assert isinstance(whole[0], CounterDropout)
    whole[0].p = rate
    return whole[0]


@pytest.mark.parametrize("rate", [0.01, 0.1, 0.5, 0.9])
def test_the_share_that_is_dropped(rate: float) -> None:
    x = torch.ones(1000, 1000)
    y = layer(rate)(x)
    dropped = (y == 0).double().mean().item()
    assert abs(dropped - rate) < 5 * (rate * (1 - rate) / x.numel()) ** 0.5
    assert torch.equal(y[y != 0], torch.full_like(y[y != 0], 1 / (1 - rate)))


def test_calls_layers_members_and_elements_are_independent() -> None:
    """Each pair of masks agrees in as many elements as independent ones do."""
    one, other = layer(0.5), layer(0.5, seed=2)
    x = torch.ones(100_000)
    masks = [one(x), one(x), other(x), other(x)]
    masks += [mask.roll(shift) for mask in masks[:1] for shift in (1, 2, 64, 4096)]
    signs = torch.stack([(mask != 0).double() * 2 - 1 for mask in masks])
    correlations = signs @ signs.T / x.numel()
    assert (correlations - torch.eye(len(masks))).abs().max() < 5 / x.numel() ** 0.5
    spectrum = torch.fft.rfft(signs[0]).abs() / x.numel() ** 0.5  # a period would stand out
    assert spectrum.max() < 5


def test_no_rate_draws_nothing_and_a_whole_rate_keeps_nothing() -> None:
    none, whole = layer(0.0), layer(1.0)
    x = torch.randn(5)
    assert none(x) is x and none.stream[1] == 0
    assert whole(x).abs().sum() == 0
    none.eval(), whole.eval()
    assert whole(x) is x


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_masks_of_several_layers_are_those_of_each(dtype: torch.dtype) -> None:
    rates = [0.0, 0.1, 0.35, 1.0]
    layers = [layer(rate, seed) for seed, rate in enumerate(rates)]
    together = Masks(torch.stack([copy.deepcopy(one).stream for one in layers]), rates)
    x = torch.randn(4, 7, 3).to(dtype)
    for _ in range(3):
        masks = together.draw(x.shape[1:], dtype)
        for row, one in enumerate(layers):
            assert torch.equal(x[row] * masks[row], one(x[row]))


def test_gradients_and_places_in_memory() -> None:
    x = torch.randn(6, 8).requires_grad_()
    one, other = layer(0.5), layer(0.5)
    y = one(x)
    y.sum().backward()
    assert x.grad is not None and torch.equal(x.grad == 0, y == 0)
    assert torch.equal(other(x.detach().t().contiguous().t()), y.detach())


def test_a_layer_in_place_writes_its_input() -> None:
    x = torch.ones(100)
    assert layer(0.5, inplace=True)(x) is x and (x == 0).any()


def test_what_is_no_plain_layer_stays() -> None:
    class Own(nn.Dropout):
        pass

    model = nn.Sequential(nn.Dropout(), nn.Dropout(0.0), Own(), nn.AlphaDropout(), nn.Dropout2d())
    CounterDropout.put_into(model, lambda name: 5)
    assert [type(part) for part in model] == [CounterDropout, nn.Dropout, Own, nn.AlphaDropout, nn.Dropout2d]
    assert not model.state_dict() and isinstance(model[0], nn.Dropout)
