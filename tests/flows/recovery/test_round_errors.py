"""What a task of a round may fail of, and what then becomes of the round."""

import pytest
from prefect.client.schemas.objects import TaskRun
from prefect.states import Completed, Failed

from nasflow.errors import InfrastructureError, StudyError, TrialError
from nasflow.flows.rounds.tasks import RepeatedTrialError, train_alone, train_batch
from nasflow.flows.rounds.train_trials import job_error
from nasflow.study.lease import LeaseLostError


@pytest.mark.parametrize(
    "error", [TrialError("it raises"), InfrastructureError("its host is gone")], ids=["trial", "infrastructure"]
)
def test_a_job_that_failed_is_its_trials_matter(error):
    assert job_error(Failed(data=error)) is error
    assert job_error(Completed(data=1)) is None


@pytest.mark.parametrize(
    "error", [OSError(28, "No space left"), StudyError("the store is locked")], ids=["os", "study"]
)
def test_no_trial_pays_for_what_the_controller_fails_of(error):
    with pytest.raises(type(error)):
        job_error(Failed(data=error))


@pytest.mark.parametrize("task", [train_batch, train_alone], ids=["batch", "alone"])
@pytest.mark.parametrize(
    ("error", "helps"),
    [
        (TrialError("it raises"), True),
        (InfrastructureError("its host is gone"), True),
        (StudyError("store: can't be used: the connection was closed"), True),
        (OSError(24, "Too many open files"), True),
        (RepeatedTrialError("it raises"), False),
        (LeaseLostError("study 's' was taken over"), False),
        (TypeError("a bug"), False),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_another_try_may_mend_is_tried_again(task, error, helps):
    """A job runs on while the controller can't follow it, and the next try follows it again."""
    run = TaskRun(task_key="train", dynamic_key="0")
    assert task.retry_condition_fn(task, run, Failed(data=error)) is helps
