"""What a task of a round may fail of, and what then becomes of the round."""

import pytest
from prefect.states import Completed, Failed

from nasflow.errors import InfrastructureError, StudyError, TrialError
from nasflow.flows.rounds.train_trials import job_error


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
