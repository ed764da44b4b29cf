import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from torch import nn

from nasflow.errors import ConfigError, InvalidArchitecture, SpaceError
from nasflow.space.architecture import Architecture
from nasflow.space.domain import Categorical, Domain, FloatDomain, IntDomain, SubsetDomain
from nasflow.space.pick import Pick
from nasflow.space.space import Count, Space

STEPS = 2
many = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])


@dataclass
class Node:
    """A choice, and what each position of its value leads to: more choices, or nothing valid (None)."""

    domain: Domain
    then: dict[int, "list[Node] | None"] = field(default_factory=dict)


def program_of(nodes: Sequence[Node]) -> Any:
    def run(pick: Pick, nodes: Sequence[Node]) -> list[Any]:
        built = []
        for place, node in enumerate(nodes):
            value = pick.domain(f"n{place}", node.domain)
            assert pick.domain(f"n{place}", node.domain) == value
            built.append(value)
            try:
                index = node.domain.index(value, STEPS)
            except ValueError:
                index = -1  # a float off the grid
            following = node.then.get(index, [])
            if following is None:
                raise InvalidArchitecture(f"n{place} = {value!r} makes no sense")
            with pick.scope(f"n{place}.{index}"):
                built.append(run(pick, following))
        return built

    return lambda pick: run(pick, nodes)


def listed(nodes: Sequence[Node], scope: str = "") -> list[dict[str, Any]]:
    """Every architecture, found by recursion over the nodes instead of by running the program."""
    found: list[dict[str, Any]] = [{}]
    for place, node in enumerate(nodes):
        label, longer = f"{scope}n{place}", []
        for start in found:
            for index, value in enumerate(node.domain.values(STEPS)):
                following = node.then.get(index, [])
                if following is not None:
                    inner = listed(following, f"{label}.{index}/")
                    longer += [{**start, label: value, **rest} for rest in inner]
        found = longer
    return found


finite = st.sampled_from(
    [
        Categorical((1, True, 1.0)),
        Categorical(("only",)),
        IntDomain(1, 4),
        IntDomain(2, 9, 3),
        IntDomain(1, 3, log=True),
        SubsetDomain((None, "b", 2), 2),
        SubsetDomain(("a", "b"), None),
    ]
)
floats = st.sampled_from([FloatDomain(0.0, 1.0), FloatDomain(1e-3, 1.0, log=True)])


def programs(domains: st.SearchStrategy[Domain]) -> st.SearchStrategy[list[Node]]:
    def node(following: st.SearchStrategy[Any]) -> st.SearchStrategy[Node]:
        return st.builds(Node, domains, st.dictionaries(st.integers(0, 2), following, max_size=2))

    leaf = st.none() | st.lists(st.builds(Node, domains), max_size=2)
    return st.lists(node(leaf | st.lists(node(leaf), max_size=2)), max_size=3)


def how_many(nodes: Sequence[Node]) -> int:
    total = 1
    for node in nodes:
        following = [node.then.get(index, []) for index in range(node.domain.size(STEPS) or 0)]
        total *= sum(how_many(inner) for inner in following if inner is not None)
    return total


def small(nodes: list[Node], most: int = 100) -> list[Architecture]:
    assume(0 < how_many(nodes) <= most)
    return [Architecture(values) for values in listed(nodes)]


@many
@given(programs(finite | floats))
def test_enumeration_is_complete_ordered_and_without_duplicates(nodes: list[Node]) -> None:
    expected, space = small(nodes), Space(program_of(nodes))
    assert list(space.enumerate(STEPS)) == expected
    assert len(set(expected)) == len(expected)
    assert space.count(float_steps=STEPS) == (len(expected), True)


@many
@given(programs(finite | floats), st.data())
def test_enumeration_goes_on_behind_any_architecture(nodes: list[Node], data: st.DataObject) -> None:
    expected, space = small(nodes), Space(program_of(nodes))
    place = data.draw(st.integers(0, len(expected) - 1))
    assert list(space.enumerate(STEPS, after=expected[place])) == expected[place + 1 :]


@many
@given(programs(finite), st.integers(0, 99))
def test_sampled_mutated_and_crossed_architectures_are_in_the_space(nodes: list[Node], seed: int) -> None:
    every, space, rng = set(small(nodes)), Space(program_of(nodes)), random.Random(seed)
    a, b = space.sample(rng), space.sample(rng)
    assert a == Space(program_of(nodes)).sample(random.Random(seed))
    child, mutant = space.crossover(a, b, rng), space.mutate(a, rng)
    assert {a, b, child, mutant} <= every
    for label in set(a) & set(b) & set(child):
        assert Architecture({"x": child[label]}) in (Architecture({"x": a[label]}), Architecture({"x": b[label]}))


@many
@given(programs(finite | floats), st.integers(0, 99))
def test_json_rebuilds_exactly(nodes: list[Node], seed: int) -> None:
    small(nodes)
    space = Space(program_of(nodes))
    architecture = space.sample(random.Random(seed))
    again = Architecture.from_json(architecture.to_json())
    space.validate(again)
    assert again == architecture
    assert repr(space.build(again)) == repr(space.build(architecture))
    assert set(space.domains(again)) == set(architecture)


@many
@given(programs(finite | floats), st.integers(0, 99))
def test_mutation_changes_one_choice(nodes: list[Node], seed: int) -> None:
    small(nodes)
    space, rng = Space(program_of(nodes)), random.Random(seed)
    parent = space.sample(rng)
    child = space.mutate(parent, rng)
    space.validate(child)
    shared = [label for label in parent if label in child]
    changed = [x for x in shared if Architecture({"": parent[x]}) != Architecture({"": child[x]})]
    if child == parent:
        assert all(domain.size() == 1 or has_invalid(nodes) for domain in space.domains(parent).values())
    else:
        assert len(changed) == 1


def has_invalid(nodes: Sequence[Node]) -> bool:
    return any(inner is None or has_invalid(inner) for node in nodes for inner in node.then.values())


def test_parents_without_valid_children_stay_themselves() -> None:
    def both_or_none(pick: Pick) -> None:
        if pick("a", [0, 1]) != pick("b", [0, 1]):
            raise InvalidArchitecture("a and b should be equal")

    space, rng = Space(both_or_none), random.Random(0)
    parent = Architecture({"a": 1, "b": 1})
    assert space.mutate(parent, rng) == parent
    assert space.crossover(parent, {"a": 0, "b": 0}, rng) in list(space.enumerate())


def test_mutation_reaches_every_neighbour() -> None:
    space = Space(lambda pick: [pick.int(f"x{i}", 1, 3) for i in range(3)])
    parent, rng = Architecture({"x0": 1, "x1": 2, "x2": 3}), random.Random(0)
    children = {space.mutate(parent, rng) for _ in range(200)}
    assert children == {a for a in space.enumerate() if sum(a[x] != parent[x] for x in a) == 1}


def nested(pick: Pick) -> None:
    for level in range(30):
        if pick(f"go{level}", [True, False]):
            return
    pick.int("far", 1, 1000)


def test_count_estimates_what_it_does_not_walk() -> None:
    uniform = Space(lambda pick: [pick(f"x{i}", list("abcd")) for i in range(20)])
    assert uniform.count() == (4**20, False)  # Knuth's estimate is exact where every run has the same options
    assert Space(nested).count(limit=100).exact is False
    assert Space(nested).count() == (1030, True)


def limited(pick: Pick) -> None:
    """Widths of which all but few have too many parameters, the largest first."""
    if sum(pick(f"width{place}", [256, 128, 64]) for place in range(14)) > 1000:
        raise InvalidArchitecture("too large")


def test_count_ends_where_nearly_all_are_refused() -> None:
    space = Space(limited)
    looks: list[int] = []
    space.program = lambda pick: (looks.append(1), limited(pick))
    assert not space.count(limit=20).exact and len(looks) < 300
    assert Space(rare_float).count(limit=1999) == (math.inf, True)


def test_an_enumeration_that_finds_none_for_long_says_so(caplog: pytest.LogCaptureFixture) -> None:
    def rare(pick: Pick) -> None:
        if pick.int("x", 1, 10_001) <= 10_000:
            raise InvalidArchitecture("too small")

    assert [found["x"] for found in Space(rare, "rare").enumerate()] == [10_001]
    assert caplog.text.count("space 'rare'") == 1 and "10000 in a row were invalid" in caplog.text


def test_knuths_estimate_has_the_count_as_its_mean() -> None:
    def program(pick: Pick) -> None:
        for place in range(pick.int("depth", 0, 6)):
            pick(f"x{place}", ["a", "b", "c"])

    space = Space(program)
    true = sum(3**depth for depth in range(7))
    assert space.count() == (true, True)
    estimates = [space.count(limit=1, seed=seed).value for seed in range(40)]
    assert sum(estimates) / 40 == pytest.approx(true, rel=0.15)


def test_count_of_huge_spaces_is_a_whole_number() -> None:
    huge = Space(lambda pick: [pick.int(f"x{i}", 1, 2**64) for i in range(25)])
    assert huge.count() == (2**1600, False)


def rare_float(pick: Pick) -> None:
    if pick.int("x", 1, 2000) == 2000:
        pick.float("lr", 0.0, 1.0)


def test_float_domains_are_endless_without_steps() -> None:
    space = Space(lambda pick: (pick("a", [1, 2]), pick.float("lr", 0.0, 1.0)))
    assert space.count() == (math.inf, True)
    assert Space(rare_float).count() == (math.inf, True)
    with pytest.raises(SpaceError, match=r"label 'lr': .*float_steps"):
        next(space.enumerate())
    assert [a["lr"] for a in space.enumerate(3)] == [0.0, 0.5, 1.0] * 2
    with pytest.raises(SpaceError, match=r"label 'lr': 0\.3 is not among the 3 values"):
        next(space.enumerate(3, after={"a": 1, "lr": 0.3}))


def test_enumeration_is_lazy() -> None:
    space = Space(lambda pick: [pick(f"x{i}", range(10)) for i in range(50)])
    tail = space.enumerate(after={f"x{i}": 9 if i else 4 for i in range(50)})
    assert [[a["x0"], a["x49"]] for a in islice(tail, 2)] == [[5, 0], [5, 1]]


def build(pick: Pick, width: int = 4) -> nn.Module:
    depth = pick.int("depth", 1, 3)
    layers = [nn.Linear(width, width) for _ in range(depth)]
    return nn.Sequential(*layers, nn.Dropout(pick.float("p", 0, 1)))


@pytest.mark.parametrize(
    ("architecture", "message"),
    [
        ({"depth": 1}, "label 'p' is missing"),
        ({"depth": 4, "p": 0.5}, "label 'depth': 4 does not fit"),
        ({"depth": 1, "p": 0.5, "q": 1}, "label 'q' is unknown to space .*build.*'depth', 'p'"),
    ],
)
def test_what_does_not_fit_is_refused_by_label(architecture: dict[str, Any], message: str) -> None:
    space = Space.of(build, {"width": 2})
    for use in (space.validate, space.build, lambda a: space.mutate(a, random.Random(0)), space.domains):
        with pytest.raises(SpaceError, match=message):
            use(architecture)


def test_building_is_real_and_exploring_is_not() -> None:
    seen = []

    def program(pick: Pick) -> nn.Module:
        model = build(pick)
        seen.append(next(model.parameters()).device.type)
        return model

    space = Space(program)
    state = torch.get_rng_state()
    architecture = space.sample(random.Random(0))
    assert seen == ["meta"] and torch.equal(torch.get_rng_state(), state)
    assert isinstance(space.build(architecture), nn.Sequential)
    assert seen == ["meta", "cpu"]
    checked = space.validate(architecture)
    assert [p.shape for p in checked.parameters()] == [p.shape for p in space.build(architecture).parameters()]
    assert seen == ["meta", "cpu", "meta", "cpu"]


def test_a_build_that_changes_its_params_changes_no_other() -> None:
    space = Space.of(lambda pick, sizes: sizes.pop(), {"sizes": [1, 2]})
    assert [space.build({}) for _ in range(2)] == [2, 2]


def test_params_that_do_not_fit_the_build_are_refused() -> None:
    with pytest.raises(SpaceError, match=r"space '.*build' can't be called.*\['heigth'\].*heigth"):
        Space.of(build, {"heigth": 3})
    with pytest.raises(SpaceError, match="should be a function"):
        Space.of(3)  # type: ignore[arg-type]


def test_an_exception_of_the_build_says_what_where_and_with_which_choices() -> None:
    def broken(pick: Pick) -> None:
        pick("x", [7])
        raise ZeroDivisionError("by nought")

    with pytest.raises(
        SpaceError, match=r"raised ZeroDivisionError: by nought \(.*test_space.py, line \d+\).*\"x\":7"
    ) as e:
        Space(broken, "mine").sample(random.Random(0))
    assert isinstance(e.value.__cause__, ZeroDivisionError) and "space 'mine'" in str(e.value)


def test_a_user_error_of_the_build_passes_unchanged() -> None:
    def refuse(pick: Pick) -> None:
        raise ConfigError("space.params.x: should be positive")

    with pytest.raises(ConfigError, match=r"^space\.params\.x"):
        Space(refuse).sample(random.Random(0))


def test_a_space_without_anything_valid_gives_up() -> None:
    def never(pick: Pick) -> None:
        pick("x", [1, 2])
        raise InvalidArchitecture("never")

    space = Space(never, "void")
    with pytest.raises(SpaceError, match="space 'void': 1000 samples in a row were invalid, the last one: never"):
        space.sample(random.Random(0))
    assert list(space.enumerate()) == [] and space.count() == (0, True)
    with pytest.raises(InvalidArchitecture, match="never"):
        space.validate({"x": 1})


def test_a_build_that_depends_on_more_than_pick_is_found_out() -> None:
    runs = []

    def fickle(pick: Pick) -> None:
        runs.append(0)
        pick(f"x{len(runs) % 2}", [1, 2])

    with pytest.raises(SpaceError, match="may depend on nothing but pick's answers"):
        list(Space(fickle).enumerate())


def test_a_range_of_one_number_is_no_choice() -> None:
    def program(pick: Pick) -> Any:
        depth = pick.int("depth", 0, 1)
        return pick.float("drop", 0.0, 0.1 * depth)

    space, rng = Space(program), random.Random(0)
    flat = Architecture({"depth": 0, "drop": 0.0})
    changed = {space.mutate(flat, rng)["depth"] for _ in range(20)}
    assert changed == {1}, "nothing else can be changed"
    assert Space(lambda pick: pick.float("drop", 0.5, 0.5)).mutate({"drop": 0.5}, rng)["drop"] == 0.5
    assert list(Space(lambda pick: pick.float("drop", 0.5, 0.5)).enumerate()) == [Architecture({"drop": 0.5})]


def test_a_program_that_raises_is_told_how_to_refuse_choices() -> None:
    def heads(pick: Pick) -> nn.Module:
        return nn.MultiheadAttention(pick("dim", [32]), pick("heads", [3]))

    with pytest.raises(
        SpaceError, match=r"where choices make no sense together, raise nasflow.errors.InvalidArchitecture"
    ):
        Space(heads).sample(random.Random(0))


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (Count(1234, exact=True), "1,234"),
        (Count(math.inf, exact=True), "inf"),
        (Count(123_456, exact=False), "about 1.23e+5"),
        (Count(3 * 10**400, exact=False), "about 3.00e+400"),
    ],
)
def test_a_count_as_text(count, text):
    assert str(count) == text


def test_a_space_with_more_architectures_than_a_float_can_hold_is_counted():
    space = Space(lambda pick: [pick.int(f"x{number}", 1, 10**9) for number in range(40)])
    assert str(space.count()) == "about 1.00e+360"
