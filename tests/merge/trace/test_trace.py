"""What a trace can't see stays as it is: called by itself around the rest, or not merged at all."""

import contextlib
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import nn

from nasflow.merge.trace.graph import NotTraceableError, trace
from nasflow.merge.trace.shape_inference import Spec
from nasflow.merge.trace.signature import Structures
from tests.merge import oddities
from tests.merge.layers import hidden
from tests.merge.merging import Group, Make, build, check, rows
from tests.merge.oddities import (
    Aliased,
    Branching,
    BySize,
    CallsTwice,
    Checkpointed,
    Constants,
    Counting,
    CountingInContainers,
    Drawing,
    GivenRoom,
    HardCoded,
    Indexed,
    InPlace,
    Looking,
    ModeElsewhere,
    ModeOfAPart,
    Named,
    Noise,
    OnAHalf,
    OnTheBatch,
    OwnGradients,
    Remembering,
    Replacing,
    Rounded,
    Several,
    SilentGradients,
    ThroughIdentity,
    Updating,
    Varied,
    WithoutGradients,
    hooked,
    normed,
    reverse,
    reversing,
)


def quiet(x: torch.Tensor) -> torch.Tensor:
    """Calls one by its class."""
    return oddities.Silent.apply(x)


def enclosing(function: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[nn.Module, torch.Tensor], torch.Tensor]:
    return lambda module, x: function(x)


class ByHelper(oddities.Odd):
    """Calls an autograd Function whose forward calls nothing, by a helper."""

    def odd(self, x: torch.Tensor) -> torch.Tensor:
        return quiet(x)


class ByModule(oddities.Odd):
    """The same by the name of a module."""

    def odd(self, x: torch.Tensor) -> torch.Tensor:
        return oddities.silent(x)


class ByClosure(oddities.Odd):
    """The same in a method that was made by a function."""

    odd = enclosing(quiet)


class Defaults(oddities.Odd):
    """Has arguments with defaults."""

    def forward(
        self, x: torch.Tensor, scale: float = 2.0, mask: torch.Tensor | None = None, *, features: bool = False
    ) -> torch.Tensor:
        found = torch.tanh(self.body(x)) * scale
        if mask is not None:
            found = found * mask
        return found if features else self.head(found)


class ListByDefault(oddities.Odd):
    """Counts its calls in a default, which all calls share."""

    def forward(self, x: torch.Tensor, calls: list[int] = []) -> torch.Tensor:  # noqa: B006
        calls.append(1)
        return self.head(torch.tanh(self.body(x)))


class OwnCall(nn.Linear):
    """Does more in its call than in its forward."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(super().__call__(x * 2)) * 3


class InAPart(nn.Module):
    """Has such a part, and calls it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.part, self.last = nn.Linear(8, 8), OwnCall(8, 8), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.relu(self.part(self.first(x))))


def own_call(where: str) -> nn.Module:
    match where:
        case "whole":
            return OwnCall(8, 4)
        case "in a part":
            return nn.Sequential(nn.Linear(8, 8), InAPart())
        case _:
            return nn.Sequential(nn.Linear(8, 8), OwnCall(8, 8), nn.Linear(8, 4))


OPAQUE: dict[str, Make] = {
    "counting": Counting,
    "counting in containers": CountingInContainers,
    "remembering": Remembering,
    "branching": Branching,
    "by size": BySize,
    "looking": Looking,
    **{f"no gradients, {how}": partial(WithoutGradients, how) for how in ("helper", "decorated", "inference")},
    "own gradients": partial(OwnGradients, reverse),
    "own gradients in a helper": partial(OwnGradients, reversing),
    "silent gradients": SilentGradients,
    "silent gradients, by helper": ByHelper,
    "silent gradients, by module": ByModule,
    "silent gradients, by closure": ByClosure,
    "checkpoint, reentrant": partial(Checkpointed, True),
    "rounded": Rounded,
    "varied": Varied,
    **{f"own call, {where}": partial(own_call, where) for where in ("whole", "in a part", "in a sequence")},
    "a list by default": ListByDefault,
    "mode of a part": ModeOfAPart,
    **{f"drawing with {how}": partial(Drawing, how) for how in ("python", "numpy", "torch")},
    "indexed": Indexed,
    "replacing": Replacing,
    **{f"hook on {where}": partial(hooked, where) for where in ("container", "module", "sequential forward")},
}
SEEN: dict[str, Make] = {
    "mode elsewhere": ModeElsewhere,
    "noise": Noise,
    "defaults": Defaults,
    "in place": InPlace,
    "constants": Constants,
    "once": partial(CallsTwice, False),
    **{f"hook on {where}": partial(hooked, where) for where in ("layer", "backward", "parameter", "accumulated")},
    "own forward": partial(hooked, "forward"),
    "weight norm": partial(normed, False),
    "old weight norm": partial(normed, True),
}
REFUSED: dict[str, Make] = {
    "aliased": Aliased,
    "through identity": lambda: ThroughIdentity(nn.Identity()),
    "through flatten": lambda: ThroughIdentity(nn.Flatten()),
    "through no dropout": lambda: ThroughIdentity(nn.Dropout(0.0)),
    "on the batch": OnTheBatch,
    "on a half": OnAHalf,
    "given room": GivenRoom,
    "updating": Updating,
    "named": Named,
    "several": Several,
    "hard coded": HardCoded,
}


class OfTwoNames(nn.Module):
    """One layer under two names, in a forward that can't be traced."""

    def __init__(self) -> None:
        super().__init__()
        self.one = self.two = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.two(self.one(x))) * 2


class Asking(nn.Module):
    """Asks whether it is given a mask."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None, factor: float) -> torch.Tensor:
        return self.layer(x) * factor if mask is None else self.layer(x * mask)


class Asked(nn.Module):
    """Calls one with a mask and with None, beside a part that can't be traced."""

    def __init__(self) -> None:
        super().__init__()
        self.asking, self.odd = Asking(), OfTwoNames()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.asking(x, None, 0.5) + self.asking(x, torch.sigmoid(x), 0.5) + self.odd(x)


def merged_with_others(make: Make) -> Group:
    """Two of a kind with a plain member between them."""
    return check([make, lambda: hidden(nn.Tanh()), make], rows(6), rows(4))


@pytest.mark.parametrize("name", OPAQUE)
def test_opaque(name: str) -> None:
    group = merged_with_others(OPAQUE[name])
    assert [graph.has_opaque for graph in group.graphs] == [True, False, True]


def test_a_hook_on_the_whole_model() -> None:
    assert merged_with_others(partial(hooked, "root")).graphs[0].nodes[1].opaque


@pytest.mark.parametrize("name", SEEN)
def test_traced_nevertheless(name: str) -> None:
    group = merged_with_others(SEEN[name])
    assert not any(graph.has_opaque for graph in group.graphs[1:2])


def test_arguments_with_defaults() -> None:
    alone, within = merged_with_others(Defaults), merged_with_others(lambda: nn.Sequential(nn.Linear(8, 8), Defaults()))
    assert not any(graph.has_opaque for group in (alone, within) for graph in group.graphs)


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    with pytest.raises(NotTraceableError):
        trace(build(REFUSED[name], 0), Spec.batch(rows(6)))


def test_checkpoints_that_keep_the_graph() -> None:
    merged_with_others(partial(Checkpointed, False))


def test_a_layer_of_two_names_keeps_its_tensors() -> None:
    model = build(lambda: hidden(OfTwoNames()), 0)
    before = dict(model.named_parameters())
    graph = trace(model, Spec.batch(rows(6)))
    assert graph.has_opaque
    after = dict(model.named_parameters())
    assert after.keys() == before.keys() and all(after[name] is before[name] for name in before)
    merged_with_others(lambda: hidden(OfTwoNames()))


def test_a_forward_may_ask_whether_an_argument_is_none() -> None:
    group = merged_with_others(lambda: hidden(Asked()))
    assert [node.name for node in group.graphs[0].nodes].count("sigmoid") == 1
    assert sum(node.opaque for node in group.graphs[0].nodes) == 1


def test_a_tuple_that_one_reads_once_and_another_twice() -> None:
    check([partial(CallsTwice, twice) for twice in (True, False, True, False)], rows(6), rows(4))


@pytest.mark.parametrize("name", [*OPAQUE, *SEEN, *REFUSED])
def test_looking_leaves_no_trace(name: str) -> None:
    """Not in attributes, buffers or modes."""
    model = build({**OPAQUE, **SEEN, **REFUSED}[name], 0)
    before, buffers = Structures().whole(model), [buffer.clone() for buffer in model.buffers()]
    with contextlib.suppress(NotTraceableError):
        trace(model, Spec.batch(rows(6)))
    assert Structures().whole(model) == before
    assert all(torch.equal(old, new) for old, new in zip(buffers, model.buffers(), strict=True))
