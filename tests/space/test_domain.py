import itertools
import json
import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nasflow.errors import SpaceError
from nasflow.space.domain import Categorical, Domain, FloatDomain, IntDomain, SubsetDomain

scalars = st.one_of(st.none(), st.booleans(), st.integers(-3, 3), st.floats(-2, 2), st.text(max_size=2))
option_lists = st.lists(scalars, min_size=1, max_size=5, unique_by=json.dumps).map(tuple)


@st.composite
def subset_domains(draw: st.DrawFn) -> SubsetDomain:
    options = draw(option_lists)
    return SubsetDomain(options, draw(st.none() | st.integers(1, len(options))))


@st.composite
def int_domains(draw: st.DrawFn) -> IntDomain:
    low = draw(st.integers(1, 50))
    log = draw(st.booleans())
    return IntDomain(low, low + draw(st.integers(0, 40)), 1 if log else draw(st.integers(1, 7)), log)


@st.composite
def float_domains(draw: st.DrawFn) -> FloatDomain:
    low = draw(st.floats(1e-6, 10))
    return FloatDomain(low, low + draw(st.floats(0, 10)), draw(st.booleans()))


domains = st.one_of(option_lists.map(Categorical), int_domains(), float_domains(), subset_domains())


@settings(deadline=None)
@given(domains, st.integers(1, 6))
def test_positions_and_values_are_one_to_one(domain: Domain, steps: int) -> None:
    values = list(domain.values(steps))
    assert len(values) == domain.size(steps) == len({json.dumps(value) for value in values})
    assert [domain.index(value, steps) for value in values] == list(range(len(values)))
    assert all(domain.contains(value) and domain.contains(json.loads(json.dumps(value))) for value in values)
    assert domain.flaw() is None


@settings(deadline=None)
@given(domains, st.integers(0, 1000))
def test_samples_lie_in_the_domain(domain: Domain, seed: int) -> None:
    assert domain.contains(domain.sample(random.Random(seed)))


@pytest.mark.parametrize("k", [1, 2, 3, 4, 5])
def test_subsets_come_in_lexicographic_order(k: int) -> None:
    options = ("a", "b", "c", "d", "e")
    assert list(SubsetDomain(options, k).values()) == [list(c) for c in itertools.combinations(options, k)]


def test_subset_of_any_size_has_the_empty_and_the_whole_one() -> None:
    values = list(SubsetDomain((1, 2, 3), None).values())
    assert values[0] == [] and values[-1] == [1, 2, 3] and len(values) == 8


@pytest.mark.parametrize(
    ("domain", "value"),
    [
        (Categorical((1, 2)), True),
        (Categorical((1, 2)), 1.0),
        (Categorical((True,)), 1),
        (Categorical((1,)), [1]),
        (IntDomain(0, 4), True),
        (IntDomain(0, 4), 1.0),
        (IntDomain(0, 4), 5),
        (IntDomain(0, 4, 2), 3),
        (FloatDomain(0.0, 2.0), 1),
        (FloatDomain(0.0, 2.0), math.nan),
        (SubsetDomain((1, 2, 3), 2), [2, 1]),
        (SubsetDomain((1, 2, 3), 2), [1, 1]),
        (SubsetDomain((1, 2, 3), 2), [1]),
        (SubsetDomain((1, 2, 3), 2), [1, 4]),
        (SubsetDomain((1, 2, 3), None), 1),
    ],
)
def test_contains_is_strict_about_type_range_and_order(domain: Domain, value: object) -> None:
    assert not domain.contains(value)
    if not isinstance(domain, FloatDomain):
        with pytest.raises(ValueError, match="is not"):
            domain.index(value)


def test_equality_is_of_kind_and_of_json_values() -> None:
    assert Categorical((1, 2)) == Categorical((1, 2)) and hash(Categorical((1,))) == hash(Categorical((1,)))
    assert Categorical((1,)) != Categorical((True,))
    assert Categorical((1,)) != Categorical((1.0,))
    assert IntDomain(1, 2) != FloatDomain(1.0, 2.0)


@pytest.mark.parametrize(
    ("domain", "flaw"),
    [
        (Categorical(()), "no options"),
        (Categorical((1, 2, 1)), "twice"),
        (Categorical((math.inf,)), "finite"),
        (IntDomain(3, 2), "above"),
        (IntDomain(0, 2, log=True), "above 0"),
        (IntDomain(1, 9, 2, True), "log and step"),
        (IntDomain(1, 9, 0), "step"),
        (IntDomain(1.0, 9), "whole"),  # type: ignore[arg-type]
        (FloatDomain(2.0, 1.0), "above"),
        (FloatDomain(0.0, 1.0, log=True), "above 0"),
        (FloatDomain(0.0, math.inf), "finite"),
        (SubsetDomain((), None), "no options"),
        (SubsetDomain((1, 1), 1), "twice"),
        (SubsetDomain((1, 2), 3), "k must be"),
        (SubsetDomain((1, 2), 0), "k must be"),
    ],
)
def test_flaws(domain: Domain, flaw: str) -> None:
    assert flaw in (domain.flaw() or "")


def test_log_domains_favour_small_numbers_and_reach_both_ends() -> None:
    rng = random.Random(0)
    ints = [IntDomain(1, 1000, log=True).sample(rng) for _ in range(4000)]
    assert min(ints) == 1 and max(ints) > 900
    assert 0.4 < sum(n <= 22 for n in ints) / 4000 < 0.6  # half of the logarithmic range
    floats = [FloatDomain(1e-4, 1.0, log=True).sample(rng) for _ in range(4000)]
    assert 0.45 < sum(x < 1e-2 for x in floats) / 4000 < 0.55


def test_float_grid_has_both_ends_or_the_middle() -> None:
    assert list(FloatDomain(0.0, 1.0).values(3)) == [0.0, 0.5, 1.0]
    assert list(FloatDomain(0.01, 1.0, log=True).values(3)) == [0.01, pytest.approx(0.1), 1.0]
    assert list(FloatDomain(0.0, 1.0).values(1)) == [0.5]
    with pytest.raises(SpaceError, match="float_steps"):
        FloatDomain(0.0, 1.0).values()
