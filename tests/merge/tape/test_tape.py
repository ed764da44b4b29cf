"""Regions of a merged model that run from a tape."""

from collections.abc import Callable, Iterator, Sequence

import pytest
import torch
from torch import nn

from nasflow.merge.tape.region import Region
from nasflow.merge.tape.tape_values import Spot
from tests.merge.merging import Group, Make, build, check, images, rows


def perceptron(width: int, activation: type[nn.Module], depth: int = 2) -> Make:
    def make() -> nn.Module:
        hidden = [layer for _ in range(depth - 1) for layer in (nn.Linear(width, width), activation())]
        return nn.Sequential(nn.Linear(8, width), activation(), *hidden, nn.Linear(width, 3))

    return make


def cells(*operations: str) -> Make:
    def make() -> nn.Module:
        made = {
            "3x3": nn.Sequential(nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)),
            "1x1": nn.Sequential(nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4)),
            "depthwise": nn.Sequential(nn.Conv2d(4, 4, 3, padding=1, groups=4), nn.BatchNorm2d(4)),
            "pool": nn.MaxPool2d(3, 1, 1),
            "skip": nn.Identity(),
        }
        stem = [nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU()]
        body = [layer for name in operations for layer in (made[name], nn.ReLU())]
        return nn.Sequential(*stem, *body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3))

    return make


MIXED = [perceptron(8, nn.ReLU), perceptron(8, nn.Tanh, 3), perceptron(8, nn.GELU, 1), perceptron(12, nn.SiLU, 3)]
CELLS = [
    cells("3x3", "pool", "1x1"),
    cells("skip", "3x3", "skip"),
    cells("1x1", "depthwise", "pool"),
    cells("3x3", "skip", "depthwise"),
    cells("pool", "1x1", "3x3"),
]


GROUPS = {"perceptrons": (MIXED * 2, rows), "cells": (CELLS, images)}


@pytest.fixture
def one_thread() -> Iterator[None]:
    """With which native kernels run in float32."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def group_of(makes: Sequence[Make], x: torch.Tensor) -> Group:
    return Group([build(make, seed) for seed, make in enumerate(makes)], [], x)


def gradients(group: Group, x: torch.Tensor, weights: torch.Tensor) -> dict[nn.Parameter, torch.Tensor | None]:
    """Of the outputs, each weighed."""
    (group.merged(x, True) * weights).sum().backward()
    return group.gradients()


@pytest.mark.parametrize("name", GROUPS)
def test_the_whole_model_is_one_region_and_gives_what_each_gives_alone(name: str) -> None:
    makes, inputs = GROUPS[name]
    group = check(makes, inputs(6), inputs(4), inputs(1) if name == "perceptrons" else inputs(2), steps=3)
    assert len(group.merged.regions) == 1
    assert not group.merged.regions[0].exports[:-1], "nothing but the outputs leaves it"


def test_activations_write_where_several_are_put_together(monkeypatch: pytest.MonkeyPatch) -> None:
    moved: list[tuple[int, int]] = []
    move = Spot.move

    def noted(self: Spot, whole: Spot, start: int, place: torch.Tensor) -> None:
        moved.append((self.count, whole.count))
        move(self, whole, start, place)

    monkeypatch.setattr(Spot, "move", noted)
    apart = [("1x1", "3x3", "skip"), ("3x3", "pool", "1x1"), ("pool", "skip", "3x3"), ("3x3", "pool", "skip")]
    check([cells(*operations) for operations in apart], images(6), images(4), steps=3)
    assert moved
    assert all(part < whole for part, whole in moved)


@pytest.mark.parametrize("name", GROUPS)
def test_more_sizes_of_batches_than_recordings(name: str) -> None:
    makes, inputs = GROUPS[name]
    check(makes, inputs(6), *(inputs(size) for size in [*range(2, 13), 6, 3]), steps=1)


def test_many_calls_before_a_backward_are_recorded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that no backward follows share a recording."""
    group, record = group_of(MIXED * 2, rows(6)), Region._record
    recorded: list[bool] = []
    monkeypatch.setattr(Region, "_record", lambda *given: recorded.append(given[-1]) or record(*given))
    for _ in range(2):
        outputs = [group.merged(rows(6), True, call=call) for call in range(1, 13)]
        sum(outputs).sum().backward()
        with torch.no_grad():
            alike = [group.merged(rows(6), False, call=call) for call in range(1, 13)]
        assert all(torch.equal(output, alike[0]) for output in alike)
    assert (recorded.count(True), recorded.count(False)) == (12, 1)


def test_a_large_batch_without_a_backward_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nasflow.merge.run.merged_model._MOST_HELD", 100_000)
    record = Region._record
    recorded: list[int] = []
    monkeypatch.setattr(Region, "_record", lambda *given: recorded.append(len(given[1][0])) or record(*given))
    check(CELLS, images(6), images(7), images(64))
    assert recorded == [6, 6, 7, 7, 64], "with a backward each, and the small ones also without"


class Gated(nn.Module):
    """Activations of a value that is read by itself, too."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(x)
        return self.head(y + torch.tanh(y) * torch.sigmoid(y))


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.float64, 1e-10)], ids=str)
@pytest.mark.usefixtures("one_thread")
def test_what_is_read_again_is_not_overwritten(dtype: torch.dtype, tolerance: float) -> None:
    group = check([Gated] * 3, rows(6, dtype=dtype), steps=3, tolerance=tolerance)
    assert len(group.merged.regions) == 1


class Branches(nn.Module):
    """A sum of which one operand is read again before the other one is made."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.pool, self.head = nn.Conv2d(3, 4, 1), nn.MaxPool2d(3, 1, 1), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(x)
        z = torch.relu(self.pool(y))
        once_more = self.pool(torch.tanh(y))
        return self.head(((y + z) * once_more).mean((2, 3)))


def test_the_operands_of_a_sum_have_gradients_of_their_own() -> None:
    assert len(check([Branches] * 3, images(6), steps=3).merged.regions) == 1


@pytest.mark.parametrize("name", GROUPS)
def test_gradients_add_up_until_they_are_taken(name: str) -> None:
    makes, inputs = GROUPS[name]
    x, generator = inputs(6), torch.Generator().manual_seed(1)
    first, second = (torch.randn(len(makes), 6, 3, generator=generator, dtype=x.dtype) for _ in range(2))
    one, other = (gradients(group_of(makes, x), x, weights) for weights in (first, second))
    group = group_of(makes, x)
    gradients(group, x, first)
    both = gradients(group, x, second)
    for a, b, total in zip(one.values(), other.values(), both.values(), strict=True):
        assert a is not None and b is not None and total is not None
        torch.testing.assert_close(total, a + b, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", GROUPS)
def test_who_has_no_part_in_the_loss_gets_no_gradient(name: str) -> None:
    makes, inputs = GROUPS[name]
    group, x = group_of(makes, inputs(6)), inputs(6)
    group.merged(x, True)[1].square().sum().backward()
    found = group.gradients()
    for member, model in enumerate(group.models):
        of = [found[parameter] for parameter in model.parameters()]
        assert any(grad is not None and bool(grad.any()) for grad in of) == (member == 1)


@pytest.mark.parametrize("name", GROUPS)
def test_a_member_that_turned_nan_leaves_the_others_their_bits(name: str) -> None:
    """In outputs and gradients, when it happens, and in the steps after that."""
    makes, inputs = GROUPS[name]
    sound, other, x = group_of(makes, inputs(6)), group_of(makes, inputs(6)), inputs(6)
    weights = torch.randn(len(makes), 6, 3, generator=torch.Generator().manual_seed(1), dtype=x.dtype)
    for step in range(3):
        if step:
            with torch.no_grad():
                next(other.models[1].parameters()).fill_(torch.nan)
        outputs = [group.merged(x, True) for group in (sound, other)]
        assert bool(outputs[1][1].isnan().any()) == (step > 0)
        grads = [gradients(group, x, weights) for group in (sound, other)]
        for member in {*range(len(makes))} - {1}:
            assert torch.equal(outputs[0][member], outputs[1][member])
            pairs = zip(*(group.models[member].parameters() for group in (sound, other)), strict=True)
            assert all(torch.equal(grads[0][mine], grads[1][theirs]) for mine, theirs in pairs)  # type: ignore[arg-type]


def test_a_backward_that_comes_too_late_is_refused() -> None:
    group = group_of(MIXED * 2, rows(6))
    late = group.merged(rows(6), True)
    kept = late.detach().clone()
    group.merged(2 * rows(6), True)
    assert torch.equal(late.detach(), kept), "outputs are the caller's own"
    with pytest.raises(RuntimeError, match="has run again since"):
        late.sum().backward()


def test_gradients_of_what_comes_from_outside_go_back_there() -> None:
    """A recurrent layer, which no tape takes up, in front of a region."""

    class Last(nn.Module):
        def forward(self, x: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
            return x[0]

    def make() -> nn.Module:
        head = [layer for _ in range(3) for layer in (nn.Linear(8, 8), nn.Tanh())]
        return nn.Sequential(nn.GRU(8, 8), Last(), *head, nn.Linear(8, 3))

    group = check([make] * 3, rows(6), rows(4))
    assert [region.first > 1 for region in group.merged.regions] == [True]


def test_automatic_casts_are_left_to_autograd() -> None:
    group, x = group_of([perceptron(8, nn.ReLU)] * 3, rows(6).double()), rows(6)
    single = Group([model.float() for model in group.models], [], x.float())
    with torch.autocast("cpu", torch.bfloat16):
        assert single.merged(x.float(), True).dtype == torch.bfloat16
    assert single.merged(x.float(), True).dtype == torch.float32


WINDOWS: dict[str, Make] = {
    "largest": lambda: nn.MaxPool2d(2),
    "largest, padded": lambda: nn.MaxPool2d(3, 1, 1),
    "largest, dilated": lambda: nn.MaxPool2d(2, (2, 1), dilation=2, ceil_mode=True),
    "mean": lambda: nn.AvgPool2d(2),
    "mean of what is there": lambda: nn.AvgPool2d(3, 2, 1, ceil_mode=True, count_include_pad=False),
    "mean by a divisor": lambda: nn.AvgPool2d((2, 3), divisor_override=5),
}


def pooled(window: Make) -> nn.Module:
    """Over channels."""
    size = window()(torch.zeros(1, 4, 6, 6)).numel()
    return nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), window(), nn.Flatten(), nn.Linear(size, 3))


class PooledRows(nn.Module):
    """Over what a linear layer gave, in a stack."""

    def __init__(self, window: Make):
        super().__init__()
        self.before, self.window = nn.Sequential(nn.Flatten(), nn.Linear(108, 144), nn.Tanh()), window()
        self.after = nn.Linear(self.window(torch.zeros(1, 4, 6, 6)).numel(), 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.after(
            self.window(self.before(x).reshape(-1, 4, 6, 6)).flatten(1).unsqueeze(1).reshape(-1, self.after.in_features)
        )
        return y


@pytest.mark.parametrize("model", [pooled, PooledRows])
@pytest.mark.parametrize("window", WINDOWS)
def test_poolings_and_views_need_no_autograd_of_their_own(
    window: str, model: Callable[[Make], nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nasflow.merge.run.merged_model.Nested", None)
    group = check([lambda: model(WINDOWS[window])] * 3, images(6), images(4), images(1))
    assert "BatchedPool" in group.kernels
    assert group.merged.regions


def test_what_evaluates_leaves_the_gradients_alone() -> None:
    group, x = group_of(CELLS, images(6)), images(6)
    output = group.merged(x, True)
    with torch.no_grad():
        group.merged(x, True)
        group.merged(images(3), False)
    output.sum().backward()
    assert all(grad is not None for grad in group.gradients().values())


def recurrent() -> nn.Module:
    """Half of it is on no tape."""

    class First(nn.Module):
        def forward(self, x: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
            return x[0]

    return nn.Sequential(nn.GRU(8, 8), First(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))


@pytest.mark.parametrize(
    ("makes", "inputs", "needs_autograd"),
    [(MIXED * 2, rows, False), (CELLS, images, False), ([recurrent] * 3, rows, True)],
    ids=["perceptrons", "cells", "half on a tape"],
)
def test_a_step_without_autograd_has_the_same_bits(
    makes: Sequence[Make], inputs: Callable[[int], torch.Tensor], needs_autograd: bool
) -> None:
    with_it, without = group_of(makes, inputs(6)), group_of(makes, inputs(6))
    ran: list[bool] = []
    for size in (6, 6, 4, 6):
        x = inputs(size)
        weights = torch.randn(len(makes), size, 3, generator=torch.Generator().manual_seed(1), dtype=x.dtype)

        def losses_of(outputs: torch.Tensor, weights: torch.Tensor = weights) -> tuple[torch.Tensor, torch.Tensor]:
            assert not outputs.requires_grad
            ran.append(torch.is_grad_enabled())
            return (outputs * weights).sum((1, 2)), weights

        expected = gradients(with_it, x, weights)
        losses = without.merged.backpropagate(x, losses_of)
        torch.testing.assert_close(losses, (with_it.merged(x, True).detach() * weights).sum((1, 2)))
        for mine, theirs in zip(expected.values(), without.gradients().values(), strict=True):
            assert mine is not None and theirs is not None
            assert torch.equal(mine, theirs)
        for group in (with_it, without):
            for tensor in [stack.tensor for stack in group.merged.stacks] + [
                parameter for model in group.models for parameter in model.parameters()
            ]:
                tensor.grad = None
    assert ran == [needs_autograd] * 4
