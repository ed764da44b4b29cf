"""Like members are grouped, and what is best is decided for each group by itself."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nasflow.merge.planning.grouping import MARGIN, Grouping, Stage, Work

STEP = 0.1


def grouping(kinds: str, fused: dict[str, float], limit: int = 1000, best: int = 1000) -> list[str]:
    """The kinds of each unit's members, for kinds with nothing in common.

    Args:
        kinds: a letter for each member; its operations cost 1 one by one.
        fused: what a further member of a kind costs in a unit.
        best: of how many members a unit is that costs the least for each of them.
    """

    def stages(group: range) -> list[Stage]:
        found = []
        for kind in dict.fromkeys(kinds[at] for at in group):
            places = [at for at in group if kinds[at] == kind]
            crowded = 1 + 0.5 * max(0, len(places) - best)
            found.append(Stage(fused[kind] * crowded * len(places), min(places), max(places)))
        return found

    works: list[Work] = [{kind: 1.0} for kind in kinds]
    return ["".join(kinds[at] for at in unit) for unit in Grouping(works, stages, STEP, limit).units()]


def test_those_that_gain_are_fused_beside_those_that_do_not() -> None:
    assert grouping("aaaabbbbcc", {"a": 0.5, "b": 1.0, "c": 0.4}) == ["aaaa", "b", "b", "b", "b", "cc"]


def test_each_group_has_a_size_of_its_own() -> None:
    assert grouping("aaaaaaaabbbbbbbb", {"a": 0.5, "b": 0.5}, best=8) == ["aaaaaaaa", "bbbbbbbb"]
    assert grouping("aaaaaaaabbbb", {"a": 0.5, "b": 0.5}, best=4) == ["aaaa", "aaaa", "bbbb"]


def test_unlike_members_are_one_unit_only_where_the_step_costs_more_than_they() -> None:
    assert grouping("ab", {"a": 0.001, "b": 0.001}) == ["ab"]
    assert grouping("aaaabbbb", {"a": 0.001, "b": 0.001}) == ["aaaabbbb"]
    assert grouping("aaaabbbb", {"a": 0.5, "b": 0.5}) == ["aaaa", "bbbb"]


def test_what_gains_less_than_the_margin_is_left_alone() -> None:
    least = (1 + STEP) * (1 - MARGIN) - STEP / 4  # of a unit of four
    assert grouping("aaaa", {"a": least + 0.01}) == list("aaaa")
    assert grouping("aaaa", {"a": least - 0.01}) == ["aaaa"]


@pytest.mark.parametrize("kinds", ["", "a", "abcdef"])
def test_none_one_and_all_different(kinds: str) -> None:
    assert grouping(kinds, dict.fromkeys(kinds, 1.0)) == list(kinds)


def test_a_limit_is_filled() -> None:
    assert [len(unit) for unit in grouping("a" * 80, {"a": 0.5}, limit=16)] == [16] * 5
    assert [len(unit) for unit in grouping("a" * 100, {"a": 0.5}, limit=40)] == [33, 33, 34]
    assert grouping("aaa", {"a": 0.5}, limit=1) == list("aaa")


@settings(max_examples=200)
@given(
    st.lists(st.tuples(st.sampled_from("abcd"), st.integers(1, 12)), max_size=8),
    st.fixed_dictionaries(dict.fromkeys("abcd", st.floats(0, 1.5))),
    st.integers(1, 40),
    st.integers(1, 8),
)
def test_each_member_is_in_one_unit_and_none_is_slower(
    runs: list[tuple[str, int]], fused: dict[str, float], limit: int, best: int
) -> None:
    kinds = "".join(kind * count for kind, count in runs)
    units = grouping(kinds, fused, limit, best)
    assert "".join(units) == kinds
    assert all(len(unit) <= limit for unit in units)
    assert units == grouping(kinds, fused, limit, best)
