"""Non-dominated sorting against its definition."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nasflow.pareto import pareto_ranks

_POINTS = st.integers(1, 3).flatmap(
    lambda width: st.lists(st.tuples(*[st.integers(-3, 3).map(float)] * width), max_size=12)
)


def _by_definition(points: list[tuple[float, ...]]) -> list[int]:
    ranks: dict[int, int] = {}
    while len(ranks) < len(points):
        left = [i for i in range(len(points)) if i not in ranks]
        front = [i for i in left if not any(_dominates(points[j], points[i]) for j in left)]
        ranks |= dict.fromkeys(front, max(ranks.values(), default=-1) + 1)
    return [ranks[i] for i in range(len(points))]


def _dominates(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    return one != other and all(a <= b for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("odd", [math.nan, math.inf])
def test_only_finite_points(odd: float) -> None:
    with pytest.raises(ValueError, match="finite"):
        pareto_ranks([(0.0, 1.0), (odd, 1.0)])


@given(_POINTS)
def test_ranks_are_those_of_the_definition(points: list[tuple[float, ...]]) -> None:
    assert pareto_ranks(points) == _by_definition(points)


@given(_POINTS, st.integers(1, 12))
def test_ranking_may_stop_early(points: list[tuple[float, ...]], enough: int) -> None:
    full, early = pareto_ranks(points), pareto_ranks(points, enough)
    ranked = [rank for rank in sorted(full) if sorted(full).index(rank) < enough]
    last = max(ranked, default=-1)
    assert early == [min(rank, last + 1) for rank in full]
