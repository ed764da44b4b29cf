"""Convolutions of single pixels do what torch does in double precision, and each member's bits are its own."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from nasflow.native.conv_1x1 import OneByOne
from tests.native.test_kernels import numbers

pytestmark = pytest.mark.usefixtures("one_thread")

ALL = (True, True, True)


def images(samples: int, channels: int, size: int, seed: int, longer: bool = False) -> Tensor:
    """Channels last; if `longer`, as some channels of others."""
    whole = numbers(samples, channels + 3 * longer, size, size, seed=seed)
    return whole.contiguous(memory_format=torch.channels_last)[:, longer : longer + channels]


@pytest.mark.parametrize("longer", [False, True], ids=["whole lines", "parts of lines"])
@pytest.mark.parametrize("channels", [(1, 3, 17), (3, 8, 8), (2, 20, 5)], ids=str)
@pytest.mark.parametrize(("samples", "size"), [(2, 3), (20, 8)])
def test_as_torch_has_it(samples: int, size: int, channels: tuple[int, int, int], longer: bool) -> None:
    rows, inside, out = channels
    x, grad = images(samples, rows * inside, size, 1, longer), images(samples, rows * out, size, 2, longer)
    weight, bias = numbers(rows, out, inside, 1, 1, seed=3), numbers(rows, out, seed=4)
    kernel, y = OneByOne(weight, bias), torch.empty_like(grad)
    exact = [tensor.double().requires_grad_() for tensor in (x, weight.flatten(0, 1), bias.flatten())]
    exact_y = F.conv2d(*exact, groups=rows)
    wanted = torch.autograd.grad(exact_y, exact, grad.double())
    for _ in range(2):  # the second time elsewhere in memory
        assert kernel.forward(x, y)
        torch.testing.assert_close(y.double(), exact_y.detach(), rtol=1e-5, atol=1e-5)
        found = kernel.backward(grad, x, ALL)
        assert found is not None
        for mine, theirs in zip(found, wanted, strict=True):
            torch.testing.assert_close(mine.double(), theirs, rtol=1e-5, atol=1e-4)  # type: ignore[union-attr]
        x, grad, y = x.clone(), grad.clone(), torch.empty_like(grad)
    assert kernel.backward(grad, x, (False, True, False))[::2] == [None, None]  # type: ignore[index]


def test_a_members_bits_do_not_depend_on_the_others() -> None:
    rows, inside, out = 3, 5, 7
    x, grad = images(9, rows * inside, 8, 1), images(9, rows * out, 8, 2)
    x[:, 2 * inside :] = torch.nan
    weight, bias = numbers(rows, out, inside, 1, 1, seed=3), numbers(rows, out, seed=4)
    together, y = OneByOne(weight, bias), torch.empty_like(grad)
    together.forward(x, y)
    found = together.backward(grad, x, ALL)
    assert found is not None
    for row in range(2):
        alone = OneByOne(weight[row : row + 1].clone(), bias[row : row + 1].clone())
        own_x, own_grad = x[:, row * inside :][:, :inside], grad[:, row * out :][:, :out]
        own_y = torch.empty(own_grad.shape).contiguous(memory_format=torch.channels_last)
        alone.forward(own_x, own_y)
        assert torch.equal(own_y, y[:, row * out :][:, :out])
        for mine, theirs in zip(alone.backward(own_grad, own_x, ALL) or [], found, strict=True):
            axis = int(mine.ndim == 4 and len(mine) == 9)  # type: ignore[union-attr, arg-type]
            assert torch.equal(mine, theirs.chunk(rows, axis)[row])  # type: ignore[union-attr, arg-type]


def test_what_it_cant_do_is_left_to_torch() -> None:
    x, weight = images(4, 6, 3, 0), numbers(2, 3, 3, 1, 1)
    kernel, y = OneByOne(weight, None), torch.zeros_like(x)
    assert kernel.forward(x, y.clone(memory_format=torch.preserve_format))
    assert not kernel.forward(x.double(), y)
    assert not kernel.forward(x.contiguous(), y)
    assert not y.any()
    assert kernel.backward(x.contiguous(), x, ALL) is None
