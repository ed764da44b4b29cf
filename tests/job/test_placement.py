"""Which trials share a job: every slot is busy, no trial is lost, and the jobs end about together."""

from hypothesis import given
from hypothesis import strategies as st

from nasflow.job.placement import Load, place

LOADS = st.lists(st.tuples(st.sampled_from("ab"), st.floats(0, 1e6)), max_size=40).map(
    lambda values: [Load(trial, shares, cost) for trial, (shares, cost) in enumerate(values)]
)


@given(LOADS, st.integers(1, 5))
def test_one_job_a_slot_for_those_that_can_share(loads: list[Load], slots: int) -> None:
    groups = place(loads, slots)
    assert sorted(trial for group in groups for trial in group) == list(range(len(loads)))
    assert all(group == sorted(group) for group in groups)
    kinds = [{loads[trial].shares for trial in group} for group in groups]
    assert all(len(kind) == 1 for kind in kinds)
    for shares in "ab":
        assert kinds.count({shares}) == min(slots, sum(load.shares == shares for load in loads))


@given(LOADS, st.integers(1, 5))
def test_work_is_balanced_as_graham_promises(loads: list[Load], slots: int) -> None:
    """No job has more than another but for its smallest member."""
    alike = [Load(load.trial, "", load.cost) for load in loads]
    costs = [[alike[trial].cost for trial in group] for group in place(alike, slots)]
    least = min(map(sum, costs), default=0.0)
    assert all(sum(group) - min(group) <= least + 1e-6 for group in costs)


def test_models_without_parameters_leave_no_job_empty() -> None:
    assert place([Load(trial, "", 0.0) for trial in range(3)], slots=2) == [[0, 2], [1]]


def test_many_trials_on_few_slots_wait_in_their_jobs() -> None:
    groups = place([Load(trial, "", 1.0 + trial) for trial in range(100)], slots=2)
    assert [len(group) for group in groups] == [50, 50]
