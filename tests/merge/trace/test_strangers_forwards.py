"""Forwards as others write them: merged and alone they are the same, in training and in eval mode."""

from collections.abc import Callable
from contextlib import nullcontext, suppress
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from nasflow.merge.run.solo_model import DirectModel
from nasflow.merge.trace.graph import NotTraceableError, trace
from nasflow.merge.trace.shape_inference import Spec
from tests.merge.merging import build, check, images, rows, tokens


class Tower(nn.Module):
    """Three hidden layers, which may be one; or two weights, which may be one."""

    def __init__(self, shares: bool):
        super().__init__()
        self.first, self.last = nn.Linear(8, 6), nn.Linear(6, 4)
        self.hidden = nn.ModuleList([nn.Linear(6, 6)] * 3 if shares else [nn.Linear(6, 6) for _ in range(3)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.first(x))
        for layer in self.hidden:
            x = torch.tanh(layer(x))
        return self.last(x)


class Weights(nn.Module):
    """Two weights of one module, which may be one."""

    def __init__(self, shares: bool):
        super().__init__()
        self.u = nn.Parameter(torch.randn(8, 8))
        self.v = self.u if shares else nn.Parameter(torch.randn(8, 8))
        self.last = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.tanh(x @ self.u) @ self.v)


def inside(kind: Callable[[bool], nn.Module], shares: bool) -> nn.Module:
    """As a part of a model."""
    return nn.Sequential(nn.Linear(8, 8), kind(shares))


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("kind", [Tower, Weights, partial(inside, Tower), partial(inside, Weights)])
def test_a_choice_of_shared_or_separate_layers(kind: Callable[[bool], nn.Module], first: bool) -> None:
    """What was traced first is no template for the other."""
    check([partial(kind, shares) for shares in (first, not first, first, not first)], rows(6), rows(4))


class Switching(nn.Module):
    """Goes another way in eval mode."""

    def __init__(self, way: str):
        super().__init__()
        self.body, self.side, self.head = nn.Linear(8, 6), nn.Linear(6, 6), nn.Linear(6, 4)
        self.way = way

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.body(x))
        z = self.side(y)
        match self.way:
            case "layer":
                return self.head(z if self.training else y)
            case "argument":
                return self.head(torch.tanh(z if self.training else y))
            case "operand":
                return self.head(y + (z if self.training else y))
            case "number":
                return self.head(z) / (3.0 if self.training else 1.0)
            case "weight":
                return self.head(y + (0.4 if self.training else 0.0) * z)
            case "axis":
                return self.head(torch.cat([y, z], 1 if self.training else -1)[:, :6])
            case "slice":
                return self.head(F.pad(z[:, : 4 if self.training else 5], (0, 2 if self.training else 1)))
        return self.head(F.dropout(z, 0.3, self.training))


@pytest.mark.parametrize("way", ["layer", "argument", "operand", "number", "weight", "axis", "slice", "dropout"])
def test_other_arguments_in_eval_mode(way: str) -> None:
    check([partial(Switching, way)] * 3, rows(6), rows(4))
    check([lambda: nn.Sequential(nn.Linear(8, 8), Switching(way))] * 3, rows(6), rows(4))


class SparseConv(nn.Module):
    """Neighbours by a sparse matrix."""

    def __init__(self, layout: str):
        super().__init__()
        self.linear = nn.Linear(8, 8)
        matrix = torch.eye(8, dtype=torch.float64).roll(1, 0)
        self.matrix = matrix.to_sparse() if layout == "coo" else matrix.to_sparse_csr()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.stack([torch.sparse.mm(self.matrix, row.unsqueeze(1)).squeeze(1) for row in self.linear(x)])


def sparse(layout: str) -> nn.Module:
    """With layers before it whose modes a trace has to restore."""
    return nn.Sequential(nn.BatchNorm1d(8), nn.Dropout(0.2), SparseConv(layout), nn.Linear(8, 4))


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("layout", ["coo", "csr"])
def test_sparse_tensors(layout: str) -> None:
    model = build(partial(sparse, layout), 0)
    with suppress(NotTraceableError):  # a compressed one has no memory that could be looked at
        trace(model, Spec.batch(rows(6)))
    assert all(part.training for part in model.modules())
    if layout == "coo":
        check([partial(sparse, layout)] * 3, rows(6), rows(4))


class Calls(nn.Module):
    """One call between two layers."""

    def __init__(self, call: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], width: int = 6):
        super().__init__()
        self.left, self.right, self.head = nn.Linear(8, 6), nn.Linear(8, 6), nn.Linear(width, 4)
        self.call = call

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.call(self.left(x), self.right(x)))


@pytest.mark.parametrize(
    "call, width",
    [
        (lambda a, b: torch.cat(tensors=[a, b], dim=1), 12),
        (lambda a, b: torch.cat([a, b], axis=1), 12),
        (lambda a, b: torch.concat((a, b), dim=-1), 12),
        (lambda a, b: F.normalize(a, dim=1) + b, 6),
        (lambda a, b: a / torch.norm(b, dim=1, keepdim=True), 6),
        (lambda a, b: a * torch.softmax(b, 1, torch.float64), 6),
        (lambda a, b: a * F.softmax(b, dim=-1) + F.log_softmax(a, 1), 6),
    ],
    ids=["cat of tensors", "axis", "concat", "normalize", "norm", "dtype", "functional softmax"],
)
def test_calls_by_other_names(call: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], width: int) -> None:
    group = check([partial(Calls, call, width)] * 3, rows(6), rows(4))
    assert not any(graph.has_opaque for graph in group.graphs)


@pytest.mark.filterwarnings("ignore:Implicit dimension")
def test_a_softmax_without_a_dimension() -> None:
    check([lambda: nn.Sequential(nn.Linear(8, 4), nn.Softmax())] * 3, rows(6), rows(4))


def test_softmax_of_functional_is_one_kernel() -> None:
    group = check([partial(Calls, lambda a, b: a * F.softmax(b, dim=-1))] * 3, rows(6))
    assert "Shaping" in group.kernels


class Words(nn.Module):
    """The mean or the sum over words, of which each batch has another number."""

    def __init__(self, divides: bool):
        super().__init__()
        self.words, self.head, self.divides = nn.Embedding(11, 6), nn.Linear(6, 4), divides

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.words(x).sum(1)
        return self.head(y / x.size(1) if self.divides else y)


@pytest.mark.parametrize("divides", [(False, True, False), (True, True, False), (False, False, True)])
def test_a_length_that_only_some_ask_for(divides: tuple[bool, ...]) -> None:
    check([partial(Words, one) for one in divides], tokens(6, 5), tokens(6, 9), tokens(6, 3), tokens(6, 10))


class Finishing(nn.Module):
    """Changes its output in place and returns it by its first name."""

    def __init__(self, change: Callable[[torch.Tensor], object]):
        super().__init__()
        self.body, self.change = nn.Linear(8, 4), change

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.body(x)
        self.change(y)
        return y


@pytest.mark.parametrize("change", [lambda y: y.clamp_(-0.1, 0.1), lambda y: F.relu(y, inplace=True)])
def test_an_output_that_is_changed_in_place(change: Callable[[torch.Tensor], object]) -> None:
    with pytest.raises(NotTraceableError, match="something else reads"):
        trace(build(partial(Finishing, change), 0), Spec.batch(rows(6)))
    check([lambda: nn.Sequential(nn.Linear(8, 4), nn.ReLU(inplace=True))] * 2, rows(6))


class ByFunction(nn.Module):
    """Batch norm without its layer."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(8, 4)
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("variance", torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.batch_norm(self.body(x), self.mean, self.variance, training=self.training)


def test_batch_norm_by_its_function() -> None:
    make: Callable[[], nn.Module] = lambda: nn.Sequential(  # noqa: E731
        *(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU()), ByFunction(), nn.Linear(4, 4)
    )
    check([make] * 3, rows(6), rows(4))


def standardizing() -> nn.Module:
    """Writes into what its first layer is given, in a hook of that or of a part."""
    whole = nn.TransformerEncoderLayer(8, 2, 9, 0.0, batch_first=True)
    whole.linear1.register_forward_pre_hook(lambda layer, inputs: inputs[0].mul_(0.5))
    first, between = nn.Linear(8, 8), nn.Linear(8, 8)
    for layer in (first, between):
        layer.register_forward_pre_hook(lambda layer, inputs: inputs[0].sub_(0.3).div_(2.0))
    return nn.Sequential(first, nn.Tanh(), nn.Linear(8, 8), between, nn.Tanh(), whole, nn.Linear(8, 4))


def test_a_hook_that_writes_into_the_batch() -> None:
    check([standardizing] * 3, rows(6), rows(4))


class Hyper(nn.Module):
    """Images beside an opaque part that views a weight of four dimensions as rows."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, padding=1)
        self.kernels = nn.Parameter(torch.randn(4, 4, 3, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.stem(x).mean((2, 3))
        return y + (self.kernels.view(4, -1).sum(1) if y.sum() > 0 else 0)


def test_a_weight_that_an_opaque_part_views() -> None:
    model, twin = (build(lambda: nn.Sequential(Hyper(), nn.Linear(4, 4)), 0) for _ in range(2))
    x = images()
    direct = DirectModel(model, trace(model, Spec.batch(x)), nullcontext(), lambda member, run: run())
    outputs = direct(x, True)
    assert outputs is not None
    torch.testing.assert_close(outputs[0], twin(x))
