"""Any state survives being packed, and nothing is ever pickled."""

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

from nasflow.errors import CheckpointError
from nasflow.training.packing import pack, unpack

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8, torch.bool]


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
    return unpack(json.loads(json.dumps(values, allow_nan=False)), load(save(found)))


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


def test_a_state_keeps_its_numbers_when_training_goes_on() -> None:
    weight = torch.nn.Parameter(torch.ones(2, 3))
    state = {"weight": weight.data, "column": weight.data[:, 1], "same": weight.data}
    values, found = pack(state)
    with torch.no_grad():
        weight.add_(1)
    assert same(unpack(values, found), {"weight": torch.ones(2, 3), "column": torch.ones(2), "same": torch.ones(2, 3)})


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
