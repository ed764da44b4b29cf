"""Parts that are laid or written before are packed as the trees that they are."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nasflow.checkpoint.json_text import MisfitError
from nasflow.checkpoint.layout import DictText, JsonText, LaidOut, Layout, ListText
from nasflow.checkpoint.packing import Packer
from tests.checkpoint.test_packing import same, scalars, trees, unpacked


def tensors_of(tree: Any) -> list[torch.Tensor]:
    if isinstance(tree, torch.Tensor):
        return [tree]
    items = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list | tuple) else ()
    return [tensor for item in items for tensor in tensors_of(item)]


@settings(max_examples=100, deadline=None)
@given(trees, trees)
def test_a_tree_that_is_laid(tree: Any, before: Any) -> None:
    """After one more tree, and twice, in blocks of other names."""
    laid, packer = LaidOut(Layout(tree), tensors_of(tree)), Packer()
    states = [[before, tree], {"a": tree, "b": [tree, before]}, [tree]]
    values = [packer.pack([before, laid]), packer.pack({"a": laid, "b": [laid, before]}), packer.pack([laid])]
    assert same(unpacked(packer, values), states)


def test_numbers_are_those_of_the_tensors_now() -> None:
    weight, counts = torch.zeros(2, 3), torch.zeros(4, dtype=torch.int64)
    layout = Layout({"w": weight, "n": counts, "lr": 0.1})
    other = [torch.full((2, 3), 7.0), torch.arange(4)]
    assert layout.fits(other)
    packer = Packer()
    text = packer.pack(LaidOut(layout, other))
    other[0].fill_(8)  # until it is copied
    assert same(unpacked(packer, [text]), [{"w": torch.full((2, 3), 8.0), "n": torch.arange(4), "lr": 0.1}])


@pytest.mark.parametrize(
    "other",
    [
        [torch.zeros(3, 2)],
        [torch.zeros(2, 3).double()],
        [torch.zeros(2, 3, device="meta")],
        [torch.zeros(2, 3)] * 2,
        [],
    ],
    ids=["shape", "dtype", "device", "more", "none"],
)
def test_others_do_not_fit(other: list[torch.Tensor]) -> None:
    assert not Layout({"w": torch.zeros(2, 3)}).fits(other)


@pytest.mark.parametrize(
    "thing", [object(), torch.zeros(2, device="meta"), torch.eye(2).to_sparse()], ids=["object", "meta", "sparse"]
)
def test_what_a_checkpoint_can_not_hold_has_no_layout(thing: Any) -> None:
    with pytest.raises(MisfitError):
        Layout({"w": torch.zeros(2), "x": [thing]})


@settings(max_examples=50, deadline=None)
@given(st.lists(st.lists(scalars, max_size=3), max_size=5))
def test_a_list_that_grows(pieces: list[list[Any]]) -> None:
    growing, items = ListText(), list[Any]()
    for piece in pieces:
        items += piece
        assert same(text_read(growing.written(items)), items)
    assert same(text_read(growing.written(items[:1])), items[:1])  # another list


@settings(max_examples=50, deadline=None)
@given(st.lists(st.dictionaries(st.sampled_from("abcd"), scalars | st.lists(scalars, max_size=2)), max_size=6))
def test_a_dict_that_changes(dicts: list[dict[str, Any]]) -> None:
    plain, one = DictText(), dict[str, Any]()
    for tree in dicts:
        assert same(text_read(plain.written(tree)), tree)
        one |= tree  # the same object, changed
        assert same(text_read(DictText().written(one)), one)


def test_lists_in_a_dict_are_read_again() -> None:
    plain, rates = DictText(), [0.1]
    plain.written({"lr": rates, "same": True})
    rates[0] = 0.2
    assert text_read(plain.written({"lr": rates, "same": True})) == {"lr": [0.2], "same": True}


@pytest.mark.parametrize("tree", [{"a": 1, "lr": torch.tensor(0.1)}, {1: 2}, {"$tensor": 1}], ids=str)
def test_a_dict_that_is_not_plain_is_given_back(tree: Any) -> None:
    plain = DictText()
    assert plain.written(tree) is tree
    assert text_read(plain.written({"a": 2.5})) == {"a": 2.5}
    assert plain.written(tree) is tree


def text_read(given: Any) -> Any:
    assert isinstance(given, JsonText)
    packer = Packer()
    return unpacked(packer, [packer.pack(given)])[0]
