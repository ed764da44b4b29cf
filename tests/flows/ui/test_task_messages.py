"""A retry of a task waits for its delay, which the end of the search cuts short, and shows why."""

import threading

import pytest
from prefect.client.schemas.objects import TaskRun
from prefect.context import TaskRunContext

from nasflow.errors import StudyError
from nasflow.flows.rounds.tasks import train_alone, train_batch
from nasflow.flows.ui import task_messages
from nasflow.flows.ui.task_messages import await_retry, note_error
from nasflow.study.records import AttemptState
from tests.flows.rounds.test_tasks import of_width, opened


@pytest.fixture
def shown(monkeypatch):
    """Name and message of each state that is shown."""
    found = []

    def show(task_run, initial_state, validated_state):
        found.append((validated_state.name, validated_state.message))

    monkeypatch.setattr(task_messages, "emit_task_run_state_change_event", show)
    return found


def in_try(number: int) -> TaskRunContext:
    run = TaskRun(task_key="train", dynamic_key="0", run_count=number)
    return TaskRunContext.model_construct(task=train_batch.with_options(retries=3), task_run=run)


@pytest.mark.parametrize(("number", "delay"), [(2, 1.0), (3, 5.0), (4, 5.0)])
def test_a_retry_waits_and_says_why(shown, number, delay):
    waited = []
    with in_try(number) as context:
        note_error(context.task_run, StudyError("store: can't be used"))
        again = f"retry {number - 1} of 3 after: store: can't be used"
        assert await_retry([1.0, 5.0], waited.append) == f"; {again}"
    assert (waited, shown) == ([delay], [("AwaitingRetry", again), ("Retrying", again)])


def test_a_first_try_waits_for_nothing(shown):
    with in_try(1):
        assert await_retry([1.0], pytest.fail) == ""
    assert await_retry([1.0], pytest.fail) == "", "outside of a task run"
    assert not shown


@pytest.mark.parametrize("kind", ["batch", "alone"])
def test_a_search_that_is_to_stop_does_not_wait_for_a_retry(tmp_path, monkeypatch, shown, kind):
    monkeypatch.chdir(tmp_path)
    with opened("late", retry={"delay_seconds": [3600.0]}) as session:
        session.study.begin_round(0)
        session.study.submit_trials(0, [of_width(8)])
        [batch] = session.study.plan_batches(0, [[0]])
        threading.Timer(0.05, session.interrupt).start()
        with in_try(2):
            train = train_batch.fn(session, batch, "0") if kind == "batch" else train_alone.fn(session, 0, 0)
        assert train.is_cancelled()
        assert shown[0][0] == "AwaitingRetry"
        assert session.study.attempt(batch.id).state is AttemptState.PLANNED
