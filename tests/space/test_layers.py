import random
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from nasflow.errors import SpaceError
from nasflow.space.architecture import Architecture
from nasflow.space.cell import Cell
from nasflow.space.layers import InputChoice, LayerChoice, Repeat
from nasflow.space.pick import FixedPick, Pick
from nasflow.space.space import Space


def test_layer_choice_makes_the_chosen_layer_only() -> None:
    def refuse() -> nn.Module:
        raise AssertionError("was not chosen")

    assert isinstance(LayerChoice(FixedPick({"op": "relu"}), "op", {"relu": nn.ReLU, "no": refuse}), nn.ReLU)
    assert isinstance(LayerChoice(FixedPick({"op": 1}), "op", [refuse, nn.Tanh]), nn.Tanh)
    with pytest.raises(SpaceError, match="label 'op': each candidate should be a factory"):
        LayerChoice(FixedPick({"op": 0}), "op", [lambda: 3])  # type: ignore[list-item, return-value]


def test_repeat_searches_its_depth_or_takes_it_as_given() -> None:
    space = Space(lambda pick: Repeat(pick, "n", lambda i: nn.Linear(i + 1, i + 2), (0, 3)))
    assert [len(space.build(a)) for a in space.enumerate()] == [0, 1, 2, 3]
    assert space.build({"n": 3})(torch.ones(5, 1)).shape == (5, 4)
    fixed = Space(lambda pick: Repeat(pick, "n", lambda i: nn.Identity(), 2))
    assert list(fixed.enumerate()) == [Architecture()] and len(fixed.build({})) == 2


@pytest.mark.parametrize(
    ("reduction", "expected"),
    [("sum", [[5.0]]), ("mean", [[2.5]]), ("concat", [[1.0, 4.0]]), ("none", [[[1.0]], [[4.0]]])],
)
def test_input_choice_joins_what_it_chose(reduction: Any, expected: Any) -> None:
    layer = InputChoice(FixedPick({"in": [0, 2]}), "in", 3, 2, reduction=reduction)
    out = layer([torch.tensor([[1.0]]), torch.tensor([[2.0]]), torch.tensor([[4.0]])])
    assert [part.tolist() for part in out] == expected if reduction == "none" else out.tolist() == expected


def test_input_choice_of_one_is_a_plain_choice() -> None:
    space = Space(lambda pick: InputChoice(pick, "in", 3))
    assert list(space.enumerate()) == [Architecture({"in": place}) for place in range(3)]
    inputs = [torch.full((2, 1), float(place)) for place in range(3)]
    assert [space.build(a)(inputs)[0].item() for a in space.enumerate()] == [0, 1, 2]
    with pytest.raises(SpaceError, match="label 'in': k must be"):
        space_of_five = Space(lambda pick: InputChoice(pick, "in", 3, 5))
        space_of_five.sample(random.Random(0))
    with pytest.raises(SpaceError, match="label 'in': reduction should be"):
        Space(lambda pick: InputChoice(pick, "in", 3, reduction="max")).sample(random.Random(0))  # type: ignore[arg-type]


class Times(nn.Module):
    def __init__(self, factor: float, source: int):
        super().__init__()
        self.factor, self.source = factor, source

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.factor


OPS = {"double": partial(Times, 2.0), "triple": partial(Times, 3.0)}


def cell(pick: Pick, **options: Any) -> Cell:
    return Cell(pick, "cell", OPS, 2, **{"num_ops_per_node": 2, "num_predecessors": 2, **options})


CHOICES = {
    "cell/node0/input0": 0,
    "cell/node0/op0": "double",
    "cell/node0/input1": 1,
    "cell/node0/op1": "triple",
    "cell/node1/input0": 2,
    "cell/node1/op0": "triple",
    "cell/node1/input1": 0,
    "cell/node1/op1": "double",
}


def test_cell_computes_its_graph() -> None:
    built = Space(cell).build(CHOICES)
    a, b = torch.full((1, 1, 2), 1.0), torch.full((1, 1, 2), 10.0)
    node0 = 2 * a + 3 * b
    node1 = 3 * node0 + 2 * a
    assert torch.equal(built([a, b]), torch.cat([node0, node1], 1))
    assert [[op.source for op in ops] for ops in built.nodes] == built.sources == [[0, 1], [2, 0]]
    assert built.merged == [0, 1]


def test_cell_merges_loose_ends_only_if_told() -> None:
    space = Space(partial(cell, merge_op="loose_end"))
    assert space.build(CHOICES).merged == [1]
    apart = space.build({**CHOICES, "cell/node1/input0": 1})
    assert apart.merged == [0, 1] and apart([torch.ones(4, 3)] * 2).shape == (4, 6)


def test_cells_of_one_label_share_choices_but_no_layers() -> None:
    ops = {"linear": lambda source: nn.Linear(3, 3), "skip": lambda source: nn.Identity()}
    space = Space(lambda pick: nn.ModuleList(Cell(pick, "cell", ops, 1) for _ in range(2)))
    assert space.count() == (2, True)
    first, second = space.build({"cell/node0/input0": 0, "cell/node0/op0": "linear"})
    assert first.nodes[0][0] is not second.nodes[0][0]


def test_cell_enumerates_every_graph() -> None:
    # node 0 reads one of 2 inputs twice, node 1 one of 3; two operations each
    assert Space(cell).count() == ((2 * 2) ** 2 * (3 * 2) ** 2, True)


def test_cell_refuses_what_it_can_not_be() -> None:
    with pytest.raises(SpaceError, match="cell 'cell': nodes, operations"):
        Space(partial(cell, num_ops_per_node=0)).sample(random.Random(0))
    with pytest.raises(SpaceError, match="cell 'cell': merge_op"):
        Space(partial(cell, merge_op="some")).sample(random.Random(0))
    with pytest.raises(ValueError, match="has 2 inputs, and was given 1"):
        Space(cell).build(CHOICES)([torch.ones(1, 1)])
