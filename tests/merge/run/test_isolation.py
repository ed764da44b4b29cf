"""Members in a group do not feel each other, whatever becomes of one."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from nasflow.merge.values.frozen_pool import FrozenPool
from tests.host_reads import HostReads
from tests.merge.layers import ACTIVATIONS, IMAGES, ROWS, SEQUENCES, TOKENS, frozen, hidden
from tests.merge.merging import Group, Make, build, images, rows, sequences, tokens, twin_step
from tests.merge.oddities import Odd

LAYERS: dict[str, tuple[Make, Callable[..., torch.Tensor]]] = {
    **{name: (make, rows) for name, (_, make) in ROWS.items()},
    **{name: (make, images) for name, (_, make) in IMAGES.items()},
    **{name: (make, sequences) for name, (_, make) in SEQUENCES.items()},
    **{name: (make, tokens) for name, (_, make) in TOKENS.items()},
    **{
        f"hidden {name}": (lambda name=name: hidden(ACTIVATIONS[name]()), rows) for name in ("GELU", "Softmax", "PReLU")
    },
}
BAD = 1
Bits = dict[str, torch.Tensor]


def group_of(make: Make, inputs: Callable[..., torch.Tensor], members: int, dtype: torch.dtype) -> Group:
    x = inputs(6) if inputs is tokens else inputs(6, dtype=dtype)
    models, twins = ([build(make, seed, dtype) for seed in range(members)] for _ in range(2))
    return Group(models, twins, x)


def bits(group: Group, steps: int = 2) -> list[Bits]:
    """Of each member: its outputs, gradients, weights and buffers of some steps, and its outputs in evaluation."""
    found: list[Bits] = [{} for _ in group.models]
    for step in range(steps):
        group.modes(training=True)
        outputs, grads = group.step(group.x), group.gradients()
        group.modes(training=False)
        with torch.no_grad():
            evaluated = group.merged(group.x.clone(), False)
        for member, model in enumerate(group.models):
            named = dict(model.named_parameters())
            tensors = {**named, **dict(model.named_buffers()), "output": outputs[member], "eval": evaluated[member]}
            tensors |= {f"{name}.grad": g for name, p in named.items() if (g := grads[p]) is not None}
            found[member] |= {f"{step}: {name}": tensor.detach().clone() for name, tensor in tensors.items()}
    return found


def spoil(model: nn.Module) -> None:
    """Weights and buffers that are not finite, of all kinds."""
    for index, tensor in enumerate([*model.parameters(), *model.buffers()]):
        if tensor.is_floating_point():
            tensor.data.fill_([torch.nan, torch.inf, -torch.inf, 1e38][index % 4])


def differing(one: Bits, other: Bits) -> list[str]:
    return [name for name, tensor in one.items() if not torch.equal(tensor, other[name])]


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
def test_not_a_number_stays_with_its_member(name: str, dtype: torch.dtype) -> None:
    make, inputs = LAYERS[name]
    sound, bad = (group_of(make, inputs, 4, dtype) for _ in range(2))
    spoil(bad.models[BAD])
    expected, found = bits(sound), bits(bad)
    for member in (0, 2, 3):
        assert differing(expected[member], found[member]) == [], member
        assert all(tensor.isfinite().all() for tensor in found[member].values())


class Failing(Odd):
    """Raises in its own code when its weights are spoilt."""

    def odd(self, x: torch.Tensor) -> torch.Tensor:
        if not bool(self.body.weight.isfinite().all()):
            raise SystemExit("spoilt")
        return torch.tanh(x)


def hooked() -> nn.Module:
    """Raises in a hook when its weights are spoilt."""

    def check(layer: nn.Module, inputs: tuple[torch.Tensor]) -> None:
        if not bool(layer.weight.isfinite().all()):
            raise SystemExit("spoilt")

    layers = [nn.Linear(8, 8) for _ in range(4)]
    layers[2].register_forward_pre_hook(check)
    return nn.Sequential(*layers)


@pytest.mark.parametrize("make", [Failing, hooked])
def test_what_a_member_raises_stays_with_it(make: Make) -> None:
    sound, bad = (group_of(make, rows, 4, torch.float32) for _ in range(2))
    spoil(bad.models[BAD])
    expected, found = bits(sound), bits(bad)
    assert bad.failures.keys() == {BAD}
    assert isinstance(bad.failures[BAD], SystemExit)
    assert all(differing(expected[member], found[member]) == [] for member in (0, 2, 3))


class Turned(nn.Module):
    """An opaque part that reads words `[length, batch, width]`."""

    class Inner(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.body, self.back = nn.Linear(6, width), nn.Linear(width, 6)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            if not bool(self.body.weight.isfinite().all()):
                raise ValueError("spoilt")
            y = self.back(torch.tanh(self.body(x)))
            return y, y.flatten(0, 1).argmax(1)

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.table, self.inner, self.head = nn.Embedding(11, 6), self.Inner(width), nn.Linear(6, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        words = self.table(x).transpose(0, 1)
        found, most = self.inner(words)
        return self.head(found + words).transpose(0, 1) * most.reshape(-1, len(x)).T.unsqueeze(-1)


@pytest.mark.parametrize("widths", [(6, 6, 6), (6, 7, 8)], ids=["one loop", "loops of one row"])
def test_one_that_left_is_a_row_of_any_length(widths: tuple[int, ...]) -> None:
    def group() -> Group:
        seeds = iter(widths * 2)  # each model is made twice
        return group_of(lambda: Turned(next(seeds)), tokens, 3, torch.float64)

    sound, bad = group(), group()
    spoil(bad.models[BAD].inner)
    for x in (tokens(6, 5), tokens(6, 9), tokens(3, 2)):
        expected, found = sound.merged(x, True), bad.merged(x, True)
        assert torch.equal(expected[0], found[0]) and torch.equal(expected[2], found[2])
        assert found[BAD].isnan().all()


def test_members_with_a_frozen_model_of_their_own_beside_one_that_others_share() -> None:
    x, pool = rows(6), FrozenPool()
    models, twins = ([frozen(lambda: nn.Linear(8, 4), seed).double() for seed in (5, 6, 5, 7, 6)] for _ in range(2))
    for model in models:
        pool.share(model)
    outputs = Group(models, twins, x).merged(x, False)
    for twin, output in zip(twins, outputs, strict=True):
        torch.testing.assert_close(output, twin(x))


class Skips(nn.Module):
    """Passes its input on in most steps."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(x) if float(torch.rand(())) < 0.4 else x


class Skipping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.branch, self.head = nn.Linear(8, 6), nn.Linear(6, 6), nn.Linear(6, 4)
        self.skips = Skips()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.tanh(self.body(x))
        return self.head(y + self.skips(torch.tanh(self.branch(y))))


def test_members_that_passed_no_gradient_on_are_found() -> None:
    """Also if that holds for all members in a step."""
    group = group_of(Skipping, rows, 2, torch.float64)
    patterns = set()
    for _ in range(20):
        group.step(group.x)
        found = group.merged.take_unreached()
        for twin, stream in zip(group.twins, group.twin_streams, strict=True):
            twin_step(twin, group.x, stream)
        skipped = {member for member, twin in enumerate(group.twins) if twin.branch.weight.grad is None}
        assert found == skipped
        patterns.add(frozenset(skipped))
    assert len(patterns) == 4


def test_an_index_out_of_a_table_is_no_row_of_another() -> None:
    """Of indices that a member computes itself; nothing is read from the device to find that out."""

    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale, self.table = nn.Parameter(torch.ones(())), nn.Embedding(8, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.table((x.abs().mean(1) * self.scale).long()) * self.scale

    group = group_of(Own, rows, 3, torch.float64)
    assert "BatchedEmbedding" in group.kernels
    with HostReads() as reads:
        group.step(group.x)
    assert not reads.found
    group.models[0].scale.data.fill_(100.0)
    with pytest.raises(IndexError):
        group.merged(group.x, True)
