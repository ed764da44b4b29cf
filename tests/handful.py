"""The handful of the contract that clusters keep whose parts keep all of it elsewhere."""

from typing import TypeVar

from nasflow.testing.training_service import TrainingServiceContract

Contract = TypeVar("Contract", bound=type[TrainingServiceContract])

HANDFUL = {
    "test_jobs_run_and_exit",
    "test_violent_ends",
    "test_what_a_job_left_running_ends_with_it",
    "test_events_by_offset",
    "test_log_tail",
    "test_cancel_ends_the_whole_tree",
    "test_a_job_outlives_its_controller",
    "test_a_lost_job_goes_on_when_submitted_again",
    "test_cleanup",
}
"""What depends on the cluster: how runs start and end, are lost and withdrawn, and how their files come back."""


def handful(contract: Contract) -> Contract:
    """Let a class have these tests only, whose docstring names those that have the whole contract with its parts.

    The others test what `ClusterService`, or the cluster or the storage that others use as well, does by itself.
    """
    tests = {name for name in dir(contract) if name.startswith("test_")}
    assert tests > HANDFUL, f"not in the contract: {HANDFUL - tests}"
    for name in tests - HANDFUL:
        setattr(contract, name, None)
    return contract
