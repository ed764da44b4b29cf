"""The kernels in C do what torch does in double precision, and a row's bits follow from that row alone."""

from itertools import product

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nasflow.native.activations import activate, activate_backward
from nasflow.native.batch_norm import Statistics, batch_norm_backward, batch_statistics, kept_statistics, normalize
from nasflow.native.cross_entropy import cross_entropies
from nasflow.native.library import library
from nasflow.native.program import ACTIVATIONS, BY_OUTPUT, Program, activation, as_programs, products, sums
from nasflow.native.softmax import log_softmax, log_softmax_backward

FUNCTIONS = {"relu": F.relu, "gelu": F.gelu, "tanh": torch.tanh, "sigmoid": torch.sigmoid, "silu": F.silu}
SPECIAL = [0.0, -0.0, 1e-30, -1e-30, 1e-4, 0.62, 0.63, 5.0, -5.0, 20.0, -20.0, 87.0, -87.0, 89.0, -89.0, 1e4, -1e4]
INFINITE = [float("inf"), float("-inf"), float("nan")]


pytestmark = pytest.mark.usefixtures("one_thread")


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def close(found: Tensor, exact: Tensor) -> None:
    torch.testing.assert_close(found.double(), exact.double(), rtol=2e-6, atol=2e-6, equal_nan=True)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_and_their_backward(name: str) -> None:
    x = torch.cat([torch.tensor(SPECIAL), 3 * numbers(4083)])
    grad = numbers(len(x), seed=1)
    exact_x = x.double().requires_grad_()
    exact = FUNCTIONS[name](exact_x)
    [exact_grad] = torch.autograd.grad(exact, exact_x, grad.double())
    y, x_grad = (torch.empty(1, len(x)) for _ in range(2))
    assert activate(name, x[None], y)
    assert activate_backward(name, grad[None], y if name in BY_OUTPUT else x[None], x_grad)
    scale = exact.detach().abs().clamp_min(1)  # a few units in the last place
    assert ((y[0] - exact).abs() / scale).max() < 5e-7
    close(x_grad[0], exact_grad)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_of_what_is_not_finite(name: str) -> None:
    x = torch.tensor([INFINITE])
    y = torch.empty_like(x)
    assert activate(name, x, y)
    expected = FUNCTIONS[name](x)
    if name in ("gelu", "silu"):  # infinity times zero may be NaN or the limit, as it comes
        assert not y.isfinite().any() and not expected.isfinite().any()
    else:
        torch.testing.assert_close(y, expected, equal_nan=True)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_a_numbers_bits_do_not_depend_on_where_it_lies(name: str) -> None:
    x = 3 * numbers(1, 100)
    whole = torch.empty_like(x)
    assert activate(name, x, whole)
    for start, stop in ((0, 1), (1, 100), (3, 20), (17, 33), (99, 100)):
        part = torch.empty(1, stop - start)
        assert activate(name, x[:, start:stop], part)
        assert torch.equal(part, whole[:, start:stop])


def test_activations_of_some_channels_of_images() -> None:
    images = numbers(5, 12, 3, 4).contiguous(memory_format=torch.channels_last)
    into = torch.zeros(5, 20, 3, 4).contiguous(memory_format=torch.channels_last)
    assert activate("relu", images[:, 2:9], into[:, 4:11])
    assert torch.equal(into[:, 4:11], images[:, 2:9].relu())
    assert not into[:, :4].any() and not into[:, 11:].any()
    assert not activate("relu", numbers(5, 12, 3, 4), into[:, :12])  # the one is not channels last


SIZES = [(1, 1, 1), (8, 16, 64), (64, 10, 48), (9, 33, 7), (7, 5, 512), (64, 64, 64), (3, 100, 20)]


@pytest.mark.parametrize(("m", "n", "k"), SIZES)
@pytest.mark.parametrize(("turned_x", "turned_y"), product([False, True], repeat=2))
def test_products(m: int, n: int, k: int, turned_x: bool, turned_y: bool) -> None:
    x = numbers(3, k, m).transpose(1, 2) if turned_x else numbers(3, m, k)
    y = numbers(3, n, k, seed=1).transpose(1, 2) if turned_y else numbers(3, k, n, seed=1)
    bias = numbers(3, 1, n, seed=2)
    exact, scale = x.double() @ y.double(), x.abs() @ y.abs() + 1
    for options, more in (({}, 0), ({"bias": bias}, bias), ({"adds": True}, 1)):
        out = torch.ones(3, m, n)
        call = products(x, y, out, **options)  # type: ignore[arg-type]
        assert call is not None
        call()
        assert ((out - (exact + more)).abs() / scale).max() < 1e-6
        alone = torch.ones(1, m, n)
        part = {name: value[1:2] if isinstance(value, Tensor) else value for name, value in options.items()}
        one = products(x[1:2], y[1:2], alone, **part)  # type: ignore[arg-type]
        assert one is not None
        one()
        assert torch.equal(alone[0], out[1])


def test_products_of_an_input_that_all_share() -> None:
    x, y, out = numbers(6, 4), numbers(3, 4, 5, seed=1), torch.empty(3, 6, 5)
    call = products(x.expand(3, -1, -1), y, out)
    assert call is not None
    call()
    close(out, x.double() @ y.double())


def test_a_row_that_is_not_finite_stays_by_itself() -> None:
    x, y, out = numbers(3, 6, 4), numbers(3, 4, 5, seed=1), torch.empty(3, 6, 5)
    x[1] = float("nan")
    call = products(x, y, out)
    assert call is not None
    call()
    assert out[1].isnan().all() and out[[0, 2]].isfinite().all()


@pytest.mark.parametrize(("m", "n"), [(1, 1), (64, 10), (29, 48), (5, 100)])
def test_sums(m: int, n: int) -> None:
    x, out = numbers(3, m, n), torch.empty(3, n)
    call = sums(x, out)
    assert call is not None
    call()
    close(out, x.double().sum(1))


def test_operations_that_follow_each_other_are_one_call() -> None:
    x = numbers(2, 4, 4)
    hidden, out, seen = torch.empty(2, 4, 4), torch.empty(2, 4, 4), []
    calls = [products(x, x, hidden), activation("relu", hidden, out), lambda: seen.append(float(out.sum()))]
    found = as_programs([*calls, calls[0]])  # type: ignore[list-item]
    assert [type(call) is Program for call in found] == [True, False, True]
    for call in found:
        call()
    close(out, (x.double() @ x.double()).relu())
    assert seen == [float(out.sum())]


@pytest.mark.parametrize("refused", [torch.float64, torch.bfloat16])
def test_other_types_are_left_to_torch(refused: torch.dtype) -> None:
    x = torch.ones(2, 3, 3, dtype=refused)
    assert products(x, x, torch.empty_like(x)) is None
    assert activation("relu", x, torch.empty_like(x)) is None
    assert sums(x, torch.empty(2, 3, dtype=refused)) is None
    assert cross_entropies(x, torch.zeros(3, dtype=torch.long), torch.zeros(2)) is None


def test_operands_without_rows_are_left_to_torch() -> None:
    x = numbers(1, 2, 2)
    assert products(x[0], x, torch.empty(1, 2, 2)) is None
    assert products(x, x[0], torch.empty(1, 2, 2)) is None
    assert products(x, x, torch.empty(2, 2)) is None


def test_several_threads_are_left_to_torch() -> None:
    torch.set_num_threads(2)
    assert library() is None
    assert products(numbers(1, 2, 2), numbers(1, 2, 2), torch.empty(1, 2, 2)) is None


@pytest.mark.parametrize(("samples", "classes"), [(1, 2), (64, 10), (29, 17), (5, 1000)])
def test_cross_entropies(samples: int, classes: int) -> None:
    logits, target = 5 * numbers(4, samples, classes), torch.arange(samples) % classes
    smoothing = torch.tensor([0.0, 0.1, 0.0, 1.0])
    given, exact = logits.clone().requires_grad_(), logits.double().requires_grad_()
    losses = cross_entropies(given, target, smoothing)
    assert losses is not None
    expected = torch.stack(
        [F.cross_entropy(own, target, label_smoothing=float(s)) for own, s in zip(exact, smoothing, strict=True)]
    )
    close(losses, expected)
    weights = torch.arange(1.0, 5.0)
    (losses * weights).sum().backward()
    (expected * weights).sum().backward()
    assert given.grad is not None and exact.grad is not None
    close(given.grad, exact.grad)


def test_cross_entropies_of_classes_that_are_masked() -> None:
    logits, target = numbers(2, 3, 4), torch.tensor([0, 1, 2])
    logits[:, :, 3] = float("-inf")
    losses = cross_entropies(logits.requires_grad_(), target, torch.zeros(2))
    assert losses is not None
    losses.sum().backward()
    assert losses.isfinite().all() and logits.grad is not None
    assert torch.equal(logits.grad[:, :, 3], torch.zeros(2, 3))


def test_targets_that_are_no_class_are_left_to_torch() -> None:
    for wrong in (-100, 4):
        assert cross_entropies(numbers(2, 3, 4), torch.tensor([0, wrong, 2]), torch.zeros(2)) is None


@pytest.mark.parametrize("shape", [(1, 2), (64, 10), (4, 29, 17), (5, 1000), (3,), (2, 3, 1)])
def test_log_softmax_and_its_backward(shape: tuple[int, ...]) -> None:
    x, gradient = 5 * numbers(*shape), numbers(*shape, seed=1)
    x.view(-1)[0] = -80.0
    exact_x = x.double().requires_grad_()
    exact = torch.log_softmax(exact_x, -1)
    exact.backward(gradient.double())
    found = log_softmax(x)
    assert found is not None and exact_x.grad is not None
    close(found, exact.detach())
    back = log_softmax_backward(gradient, found)
    assert back is not None
    torch.testing.assert_close(back.double(), exact_x.grad, rtol=1e-5, atol=1e-5)


def test_log_softmax_of_numbers_that_are_not_finite() -> None:
    x = numbers(20, 5)
    x[3, 1], x[7, 2], x[11] = float("-inf"), float("nan"), float("-inf")
    x[15, 4] = float("inf")
    found = log_softmax(x)
    assert found is not None
    torch.testing.assert_close(found, torch.log_softmax(x, -1), equal_nan=True)
    assert log_softmax(x.double()) is None and log_softmax(x[:, :0]) is None


@pytest.mark.parametrize("images", [False, True])
@pytest.mark.parametrize("channels", [3, 16, 40, 600])
def test_batch_norm(channels: int, images: bool) -> None:
    shape = (6, channels, 5, 3) if images else (70, channels)
    layout = torch.channels_last if images else torch.contiguous_format
    x = (3 + numbers(*shape)).contiguous(memory_format=layout)
    grad = numbers(*shape, seed=1).contiguous(memory_format=layout)
    layer = (nn.BatchNorm2d if images else nn.BatchNorm1d)(channels, dtype=torch.float64)
    layer.weight.data.copy_(numbers(channels, seed=2))
    layer.bias.data.copy_(numbers(channels, seed=3))
    exact_x = x.double().requires_grad_()
    weight, bias = layer.weight.detach().float(), layer.bias.detach().float()
    running = (torch.zeros(channels), torch.ones(channels))
    y, of_batch, kept = torch.empty_like(x), *(Statistics(torch.empty(channels), torch.empty(channels)) for _ in "12")
    assert batch_statistics(x, running, (0.1, 1e-5), of_batch)
    of_channels = (*of_batch, weight, bias)
    assert normalize(None, x, of_channels, (0, channels), y)
    exact = layer(exact_x)
    exact.backward(grad.double())
    close(y, exact.detach())
    for name in ACTIVATIONS:
        activated, directly = torch.empty_like(x), torch.empty_like(x)
        assert activate(name, y, activated) and normalize(name, x, of_channels, (0, channels), directly)
        assert torch.equal(activated, directly)
    close(running[0], layer.running_mean)
    close(running[1], layer.running_var)
    assert kept_statistics(x, running, 1e-5, kept)
    assert normalize(None, x, (*kept, weight, bias), (0, channels), y)
    close(y, layer.eval()(x.double()).detach())
    found = batch_norm_backward(grad, x, weight, of_batch)
    assert found is not None
    wanted = (exact_x.grad, layer.weight.grad, layer.bias.grad)
    for own, expected in zip(found, wanted, strict=True):
        assert expected is not None
        torch.testing.assert_close(own.double(), expected, rtol=1e-5, atol=1e-5)


def test_a_channels_bits_do_not_depend_on_the_others() -> None:
    x = numbers(6, 40, 5, 3).contiguous(memory_format=torch.channels_last)
    weight, bias = numbers(40, seed=1), numbers(40, seed=2)

    def normalized(start: int, stop: int) -> tuple[Tensor, ...]:
        part = x[:, start:stop]
        y = torch.empty_like(part.contiguous(memory_format=torch.channels_last))
        found_by = Statistics(torch.empty(stop - start), torch.empty(stop - start))
        assert batch_statistics(part, None, (0.1, 1e-5), found_by)
        assert normalize(None, x[:, start:], (*found_by, weight[start:stop], bias[start:stop]), (0, stop - start), y)
        found = batch_norm_backward(y, part, weight[start:stop], found_by)
        assert found is not None
        return (y, *found)

    whole = normalized(0, 40)
    for start, stop in ((0, 8), (8, 40), (5, 21)):
        y, x_grad, *of_layer = normalized(start, stop)
        assert torch.equal(y, whole[0][:, start:stop])
        assert torch.equal(x_grad, whole[1][:, start:stop])
        for own, all_of_it in zip(of_layer, whole[2:], strict=True):
            assert torch.equal(own, all_of_it[start:stop])
