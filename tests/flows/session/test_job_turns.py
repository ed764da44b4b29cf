"""In which order jobs are given to the training service."""

import importlib
import sys
import threading
from types import SimpleNamespace

import pytest
from prefect.settings import PREFECT_TASKS_RUNNER_THREAD_POOL_MAX_WORKERS, temporary_settings

from nasflow.errors import InterruptedSearchError
from nasflow.flows import retry_failed, sampling_round, search, task_threads
from nasflow.flows.session.job_queue import JobQueue
from nasflow.flows.session.job_turns import JobTurns
from nasflow.flows.session.running_rounds import RunningRounds
from nasflow.study.records import AttemptState


def given(queue: JobQueue, oldest: int | None) -> list[int]:
    """The jobs that are given one after the other until one has to wait."""
    found = []
    while (trial := queue.next(oldest)) is not None:
        queue.forget(trial)
        queue.begin(trial)
        found.append(trial)
    return found


def test_the_most_expensive_jobs_of_the_oldest_round_are_given_first_and_all_at_once():
    queue = JobQueue()
    for trial, cost in enumerate([1.0, 3.0, 2.0, 3.0]):
        queue.expect(0, cost, trial)
    assert given(queue, oldest=0) == [1, 3, 2, 0]


def test_jobs_of_a_later_round_fill_free_slots_and_no_more():
    queue = JobQueue()
    queue.slots = 16
    for trial in range(40):
        queue.expect(1, 1.0, trial)
    assert given(queue, oldest=0) == list(range(18)), "two more than there are slots"
    queue.end(3)
    assert given(queue, oldest=0) == [18]
    queue.expect(0, 1.0, 100)
    assert given(queue, oldest=0) == [100], "a retry of the oldest round waits for none"
    queue.end(0)
    queue.end(1)
    assert given(queue, oldest=0) == [19]
    assert given(queue, oldest=1) == list(range(20, 40)), "once that round is the oldest"


def attempt(trial: int, state: AttemptState = AttemptState.PLANNED) -> SimpleNamespace:
    return SimpleNamespace(id=trial, members=(trial,), state=state)


def give(order: JobTurns, found: list[int], one: SimpleNamespace) -> None:
    with order.job(one), order.turn(one):
        found.append(one.members[0])


def test_threads_give_their_jobs_in_order_whichever_comes_first():
    order, found = JobTurns(RunningRounds(), lambda: None), []
    for trial in range(6):
        order.expect(0, float(trial), trial)
    threads = [threading.Thread(target=give, args=(order, found, attempt(trial))) for trial in (0, 2, 1, 3)]
    for thread in threads:
        thread.start()
    give(order, found, attempt(7))  # nobody expects it, because it starts again
    give(order, found, attempt(5, AttemptState.RUNNING))  # it runs already
    assert found == [7, 5]
    order.forget(4)  # its task run ended without it
    for thread in threads:
        thread.join(10)
    assert found == [7, 5, 3, 2, 1, 0]


def test_a_job_that_waits_does_not_outlast_its_search():
    rounds = RunningRounds()

    def refuse() -> None:
        raise InterruptedSearchError("it is to stop")

    order = JobTurns(rounds, refuse)
    order.set_slots(0)
    with rounds.running(0):
        order.expect(1, 1.0, 5)
        with pytest.raises(InterruptedSearchError), order.turn(attempt(5)):
            pytest.fail("there is no slot")
        assert rounds.oldest == 0
    assert rounds.oldest is None


@pytest.mark.parametrize("flow", [search, sampling_round, retry_failed], ids=lambda flow: flow.name)
def test_every_job_has_a_thread_to_wait_in_for_its_turn(flow, monkeypatch):
    assert flow.task_runner is task_threads.UNLIMITED
    with temporary_settings({PREFECT_TASKS_RUNNER_THREAD_POOL_MAX_WORKERS: 1}):
        monkeypatch.setattr(task_threads, "UNLIMITED", None)  # and what it was afterwards
        importlib.reload(task_threads)
        assert task_threads.UNLIMITED.duplicate()._max_workers == sys.maxsize
