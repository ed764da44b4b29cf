import random
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from torch import nn

from nasflow.errors import SpaceError
from nasflow.space.architecture import Architecture
from nasflow.space.domain import FloatDomain
from nasflow.space.pick import FixedPick, Pick, RandomPick


def test_scalars_are_stored_themselves_and_other_options_by_position() -> None:
    objects = [object(), object()]
    pick = FixedPick({"width": 16, "thing": 1, "kernels": [3, 7], "mixed": [1]})
    assert pick("width", [8, 16]) == 16
    assert pick("thing", objects) is objects[1]
    assert pick.subset("kernels", (3, 5, 7), 2) == [3, 7]
    assert pick.subset("mixed", objects, 1) == [objects[1]]
    assert pick.architecture == Architecture({"width": 16, "thing": 1, "kernels": [3, 7], "mixed": [1]})


def test_one_and_true_are_different_options() -> None:
    for value in (1, True, 1.0, "1", None):
        assert repr(FixedPick({"x": value})("x", [1, True, 1.0, "1", None])) == repr(value)


def test_mappings_store_the_key_and_call_factories_but_not_modules() -> None:
    module = nn.Identity()
    options = {"make": nn.ReLU, "ready": module, "plain": 7}
    assert isinstance(FixedPick({"x": "make"})("x", options), nn.ReLU)
    assert FixedPick({"x": "ready"})("x", options) is module
    assert FixedPick({"x": "plain"})("x", options) == 7


def test_the_same_label_is_the_same_choice_made_anew() -> None:
    pick = RandomPick(random.Random(0))
    first, second = (pick("act", {"relu": nn.ReLU, "tanh": nn.Tanh}) for _ in range(2))
    assert type(first) is type(second) and first is not second
    subset = pick.subset("s", [1, 2, 3], 2)
    subset.append(9)
    assert pick.subset("s", [1, 2, 3], 2) == subset[:2]
    assert len(pick.architecture) == 2


def test_scopes_nest_and_end() -> None:
    pick = RandomPick(random.Random(0))
    with pick.scope("a"):
        with pick.scope("b"):
            pick.int("n", 1, 3)
        pick.int("n", 1, 3)
    pick.int("n", 1, 3)
    assert list(pick.architecture) == ["a/b/n", "a/n", "n"]
    assert list(pick.domains) == ["a/b/n", "a/n", "n"]


def test_random_pick_keeps_what_fits() -> None:
    pick = RandomPick(random.Random(0), {"a": 3, "b": 99, "c": 0.5})
    assert pick.int("a", 1, 3) == 3
    assert pick.int("b", 1, 3) in (1, 2, 3)
    assert pick.domain("c", FloatDomain(0.0, 1.0)) == 0.5


def test_whole_bounds_make_a_float() -> None:
    value = FixedPick({"x": 1.0}).float("x", 0, 1)
    assert value == 1.0 and isinstance(value, float)


def test_fixed_pick_knows_what_was_not_asked() -> None:
    pick = FixedPick({"a": 1, "b": 2})
    pick("b", [1, 2])
    assert pick.unused == ["a"]


ask: list[tuple[Callable[[Pick], Any], str]] = [
    (lambda pick: pick("x", []), "label 'x': it has no options"),
    (lambda pick: pick("x", {}), "label 'x': it has no options"),
    (lambda pick: pick("x", [1, 1]), "label 'x': it has an option twice"),
    (lambda pick: pick("x", "abc"), "label 'x': options should be a list"),
    (lambda pick: pick("x", {1, 2}), "label 'x': options should be a list"),
    (lambda pick: pick("x", {(1, 2): nn.ReLU}), r"label 'x': option \(1, 2\) is not a string"),
    (lambda pick: pick.int("x", 3, 1), r"label 'x': low \(3\) is above high \(1\)"),
    (lambda pick: pick.int("x", 1, 9, step=2, log=True), "label 'x': log and step can't be combined"),
    (lambda pick: pick.float("x", 0, 1, log=True), "label 'x': log needs low above 0"),
    (lambda pick: pick.float("x", "0", 1), "label 'x': low and high must be finite floats"),
    (lambda pick: pick.subset("x", [1, 2], 5), "label 'x': k must be a whole number from 1 to 2"),
    (lambda pick: pick("", [1]), "a label must be a string"),
    (lambda pick: pick(3, [1]), "a label must be a string"),
    (
        lambda pick: (pick("y", [1, 2]), pick("y", [1, 2, 3])),
        r"label 'y' was first one of 1, 2, and is now one of 1, 2, 3",
    ),
    (lambda pick: (pick("y", [1, 2]), pick.int("y", 1, 2)), "label 'y' was first .* is now a whole number"),
]


@pytest.mark.parametrize(("misuse", "message"), ask)
def test_misuse_is_told_by_label(misuse: Callable[[Pick], Any], message: str) -> None:
    with pytest.raises(SpaceError, match=message):
        misuse(RandomPick(random.Random(0)))


@pytest.mark.parametrize(
    ("architecture", "message"),
    [
        ({}, "label 's/x' is missing from the architecture: it should be a whole number"),
        ({"s/x": 9}, r"label 's/x': 9 does not fit, it should be a whole number in \[1, 3\]"),
        ({"s/x": True}, "label 's/x': True does not fit"),
        ({"s/x": [1]}, "label 's/x'"),
    ],
)
def test_what_does_not_fit_is_told_by_label(architecture: dict[str, Any], message: str) -> None:
    pick = FixedPick(architecture)
    with pytest.raises(SpaceError, match=message), pick.scope("s"):
        pick.int("x", 1, 3)


def test_long_option_lists_are_cut_in_messages() -> None:
    with pytest.raises(SpaceError) as error:
        FixedPick({"x": -1})("x", range(10_000))
    assert "10000 in all" in str(error.value) and len(str(error.value)) < 200


def test_torch_is_not_imported_to_describe_a_space() -> None:
    code = "import sys, nasflow.space.space; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
