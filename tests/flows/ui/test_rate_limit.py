"""Of many values only some pass, the newest of each key, and no key waits for ever."""

from itertools import pairwise

from nasflow.flows.ui.rate_limit import Newest


def test_a_crowd_passes_at_the_rate_and_no_key_starves():
    now = [0.0]
    newest = Newest[int, tuple[int, int]](rate=5, burst=10, clock=lambda: now[0])
    passed: list[tuple[int, int]] = []
    for epoch in range(1, 301):  # 128 trials, 0.1 s an epoch
        now[0] = 0.1 * epoch
        for trial in range(128):
            passed += newest.put(trial, (trial, epoch))
    assert 5 * 30 <= len(passed) <= 10 + 5 * 30
    assert {trial for trial, _ in passed} == set(range(128)), "each had its turn"
    assert all(later[1] > earlier[1] for trial in range(128) for earlier, later in pairs(passed, trial))


def pairs(passed, trial):
    own = [value for value in passed if value[0] == trial]
    return pairwise(own)


def test_the_newest_value_takes_the_place_of_the_one_that_waits():
    now = [0.0]
    newest = Newest[str, int](rate=1, burst=1, clock=lambda: now[0])
    assert newest.put("a", 1) == [1]
    assert newest.put("b", 1) == [] and newest.put("a", 2) == [] and newest.put("b", 2) == []
    now[0] = 1.0
    assert newest.put("a", 3) == [2], "b waited longest, and its newest value is 2"
    newest.drop("a")
    now[0] = 5.0
    assert newest.put("c", 1) == [1]
