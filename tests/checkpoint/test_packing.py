"""Any state survives being packed, a tensor that many show is kept once, and nothing is ever pickled."""

import json
import math
from collections import OrderedDict
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load, save

from nasflow.checkpoint.packing import Packer, pack, unpack
from nasflow.errors import CheckpointError

DTYPES = [
    *(torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.complex64, torch.bool),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.uint16, torch.uint32),
]


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    shape = draw(st.lists(st.integers(0, 3), max_size=3))
    numbers = draw(st.lists(st.integers(0, 200), min_size=math.prod(shape), max_size=math.prod(shape)))
    return torch.tensor(numbers).reshape(shape).to(draw(st.sampled_from(DTYPES)))


scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
keys = st.text() | st.integers() | st.tuples(st.integers(), st.text()) | st.none() | st.floats(allow_nan=False)
trees = st.recursive(
    scalars | tensors(),
    lambda inner: st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(keys, inner),
    max_leaves=12,
)


def same(a: Any, b: Any) -> bool:
    """Equal in value and type, NaN equal to NaN, dicts in the same order."""
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return same(list(a.items()), list(b.items()))
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, float):
        return (a == b and math.copysign(1, a) == math.copysign(1, b)) or (math.isnan(a) and math.isnan(b))
    return bool(a == b)


def through_files(tree: Any) -> Any:
    values, found = pack(tree)
    json.loads(values, parse_constant=pytest.fail)  # NaN and infinity are not JSON
    return unpack(values, load(save(found)))


@settings(max_examples=150, deadline=None)
@given(trees)
def test_round_trip(tree: Any) -> None:
    assert same(through_files(tree), tree)


@pytest.mark.parametrize(
    "tree",
    [
        {"$tensor": "a"},
        {"$tuple": [1]},
        {"$float": "x", "$dict": 2},
        {"a/b": torch.zeros(1), "a": {"b": torch.ones(1)}},
        {1: torch.zeros(1), "1": torch.ones(1)},
        {(1, 2.5): {}, None: (), True: []},
        {"": torch.tensor(2.5), "0": {"": torch.tensor(True)}},
        {"inf": [math.inf, -math.inf, math.nan, -0.0]},
    ],
    ids=str,
)
def test_awkward_trees(tree: Any) -> None:
    assert same(through_files(tree), tree)


def test_a_single_tensor_keeps_its_numbers_when_training_goes_on() -> None:
    count = torch.tensor([3])
    packer = Packer()
    packer.pack({"batches": count, "norm": torch.ones(3)})
    flat = packer.flat()
    count.add_(1)
    assert sorted(map(torch.Tensor.tolist, flat.values())) == [[1, 1, 1], [3]]


def test_a_state_keeps_its_numbers_when_training_goes_on() -> None:
    weight = torch.nn.Parameter(torch.ones(2, 3))
    state = {"weight": weight.data, "column": weight.data[:, 1], "same": weight.data}
    values, found = pack(state)
    with torch.no_grad():
        weight.add_(1)
    assert same(unpack(values, found), {"weight": torch.ones(2, 3), "column": torch.ones(2), "same": torch.ones(2, 3)})


def layouts() -> dict[str, torch.Tensor]:
    numbers = torch.arange(24.0).reshape(2, 3, 4)
    waves = torch.complex(numbers, numbers + 1)
    return {
        "transposed": numbers.mT,
        "every other": numbers[:, ::2, 1:],
        "channels last": torch.arange(120.0).reshape(2, 3, 4, 5).contiguous(memory_format=torch.channels_last),
        "expanded": numbers[0, 0].expand(5, 4),
        "conjugate": waves.conj(),
        "negative": waves.conj().imag,
        "parameter": torch.nn.Parameter(numbers),
    }


@pytest.mark.parametrize("name", layouts())
def test_values_survive_whatever_their_layout(name: str) -> None:
    tensor = layouts()[name]
    found = through_files({"it": tensor, "whole": tensor.detach().clone(), "first": tensor[0]})
    assert same(found, {"it": tensor, "whole": tensor, "first": tensor[0]})
    assert found["it"].is_contiguous()
    assert not found["it"].requires_grad


def test_what_lies_in_one_memory_is_told_apart() -> None:
    square, waves = torch.arange(16.0).reshape(4, 4), torch.complex(torch.ones(3), torch.arange(3.0))
    several = [
        square,
        square.mT,
        square[0],
        square.view(torch.int32),
        waves,
        waves.conj(),
        waves.imag,
        waves.conj().imag,
    ]
    assert same(through_files(several), several)


def test_what_is_unpacked_is_nobody_elses() -> None:
    tensor = torch.zeros(3)
    values, blocks = pack([tensor, tensor])
    first, second = unpack(values, blocks)
    first.add_(1)
    assert same([second, tensor, unpack(values, blocks)[0]], [torch.zeros(3)] * 3)


def test_subclasses_become_what_they_derive_from() -> None:
    assert same(through_files(OrderedDict(a=np.float64(0.1))), {"a": 0.1})


@pytest.mark.parametrize("what", [np.int64(3), {1, 2}, b"bytes", lambda: None, object(), 1j])
def test_what_can_not_be_held_is_refused_with_its_place(what: Any) -> None:
    with pytest.raises(CheckpointError, match=rf"state at '/fitting/0/best' is a {type(what).__name__}, which"):
        pack({"fitting": ({"best": what},)})


@pytest.mark.parametrize("key", [torch.zeros(1), (1, torch.zeros(1)), frozenset()])
def test_a_key_that_can_not_be_held_is_refused(key: Any) -> None:
    with pytest.raises(CheckpointError, match="state at '/fitting"):
        pack({"fitting": {key: 1}})


@pytest.mark.parametrize(
    ("tensor", "what"),
    [
        (torch.zeros(2, 2).to_sparse(), "sparse_coo tensor of float32 on cpu"),
        (torch.zeros(2, dtype=torch.complex128), "strided tensor of complex128 on cpu"),
        (torch.zeros(2, device="meta"), "strided tensor of float32 on meta"),
    ],
    ids=["sparse", "complex128", "meta"],
)
def test_a_tensor_that_can_not_be_held_is_refused_with_its_place(tensor: torch.Tensor, what: str) -> None:
    with pytest.raises(CheckpointError, match=f"state at '/module/w' is a {what}, which"):
        pack({"module": {"w": tensor}})


# --- several trees -----------------------------------------------------------------------------------------------


def unpacked(packer: Packer, values: list[Any]) -> list[Any]:
    flat = packer.flat()
    blocks = {name: flat[block.flat].narrow(0, block.start, block.length) for name, block in packer.blocks.items()}
    return [unpack(each, blocks) for each in values]


def elements(packer: Packer) -> int:
    return sum(len(tensor) for tensor in packer.flat().values())


@settings(max_examples=50, deadline=None)
@given(st.lists(trees, max_size=4))
def test_round_trip_of_several(several: list[Any]) -> None:
    packer = Packer()
    values = [packer.pack(tree) for tree in several + several]
    assert same(unpacked(packer, values), several + several)
    assert len(packer.flat()) <= len(DTYPES)
    assert packer.nbytes == sum(tensor.nbytes for tensor in packer.flat().values())


def test_what_several_show_is_kept_once() -> None:
    trunk, packer = torch.randn(100, 7), Packer()
    states = [{"trunk": trunk, "own": torch.full((5,), float(i)), "view": trunk.view(100, 7)} for i in range(12)]
    values = [packer.pack(state) for state in states]
    assert elements(packer) == 700 + 12 * 5
    assert same(unpacked(packer, values), states)


def test_rows_of_a_stack_bring_no_more_than_themselves() -> None:
    """Members of a unit are views of stacks, which hold the rows of others too."""
    stack, dataset, packer = torch.randn(64, 10, 3), torch.randn(10_000), Packer()
    states = [{"row": stack[i], "rows": stack[i][:, 1], "part": dataset[20:30]} for i in (3, 5)]
    values = [packer.pack(state) for state in states]
    assert elements(packer) == 2 * (30 + 10) + 10
    assert same(unpacked(packer, values), states)


def test_memory_that_is_used_again_is_not_taken_for_what_lay_there() -> None:
    """Random streams give their state as new tensors, that are gone as soon as nobody holds them."""
    packer = Packer()
    values = [packer.pack({"position": torch.full((1000,), i)}) for i in range(50)]
    assert [found["position"][0].item() for found in unpacked(packer, values)] == list(range(50))


def test_of_a_tree_that_is_refused_nothing_stays() -> None:
    packer, shared = Packer(), torch.ones(4)
    first = packer.pack([shared])
    refused = torch.zeros(3)
    with pytest.raises(CheckpointError):
        packer.pack({"w": refused, "odd": object()})
    second = packer.pack([refused, shared])
    assert elements(packer) == 4 + 3
    assert same(unpacked(packer, [first, second]), [[shared], [refused, shared]])
