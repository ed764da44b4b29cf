"""The last task of a search: its best trial is scored on test data that no trial has seen."""

from prefect import get_run_logger, task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State, TaskRun
from prefect.states import Completed
from prefect.tasks import Task

from nasflow.errors import InfrastructureError, TrialError
from nasflow.job.events import Alert, Confusion, Event
from nasflow.job.spec import JobSpec, MemberSpec
from nasflow.report.confusion import confusion_markdown
from nasflow.report.text import plain_number, shown
from nasflow.study.records import AttemptKind
from nasflow.trial import FailureKind, Trial

from .budget import is_tested, untested
from .session.control import cancelled_if_interrupted
from .session.session import SearchSession
from .ui.artifacts import artifact_key, show_markdown
from .ui.run_page import tag_task_run
from .ui.task_messages import await_retry, failed, note_error


def score_best(session: SearchSession) -> None:
    """Score the best trial on the config's test data, unless there is none or it was scored before.

    A failure is shown by the task's state; the search does not fail for it.
    """
    best = untested(session.study)
    if best is None:
        return
    score = score_on_test_data.with_options(retries=session.config.retry.batch, retry_delay_seconds=0)
    score(session, best.number, return_state=True)
    session.refuse_interrupted()


def _was_lost(task: Task[..., object], task_run: TaskRun, state: State[object]) -> bool:
    """Whether to retry: what fails by the trial's own code or data would fail again."""
    error = state.result(raise_on_failure=False)
    if not isinstance(error, InfrastructureError):
        return False
    note_error(task_run, error)
    return True


@task(
    name="score on test data",
    description="Score the best trial once on test data that no trial has seen.",
    cache_policy=NO_CACHE,
    task_run_name="score trial {number} on test data",
    retry_condition_fn=_was_lost,
)
@cancelled_if_interrupted
def score_on_test_data(session: SearchSession, number: int) -> State[Trial]:
    """Score a trial in a job of the training service, and add the metrics to the trial's.

    The state is FAILED with an InfrastructureError if the job was lost, with a TrialError if the trial's code failed.
    """
    tag_task_run()
    again = await_retry(session.config.retry.delay_seconds, session.stop.wait)
    session.refuse_interrupted()
    study = session.study
    trial = study.trial(number)

    def make_spec(job_id: str) -> JobSpec:
        members = [MemberSpec(trial=number, architecture=trial.architecture, seed=trial.seed)]
        data = session.outline(trial).data
        return JobSpec.of_search(
            session.config, job_id, data, members, generation=study.generation, copies=study.copies, tests=True
        )

    def on_event(event: Event) -> None:
        if isinstance(event, Alert):
            get_run_logger().warning(event.text)
        elif isinstance(event, Confusion):
            markdown = confusion_markdown(number, event.counts)
            show_markdown(artifact_key(session.config.name, "confusion"), markdown, "Classes of the test data")

    ended = session.follower.follow(study.new_attempt(number, AttemptKind.TEST), make_spec, on_event)
    if ended.failure is FailureKind.INFRASTRUCTURE:
        return failed(InfrastructureError(ended.error))
    trial = study.trial(number)
    if not is_tested(study, trial):
        return failed(TrialError(ended.error or "the job ended without a result for the trial"))
    found = {name: value for name, value in trial.metrics.items() if name.startswith("test_")}
    message = ", ".join(f"{name} {shown(plain_number(value))}" for name, value in sorted(found.items()))
    return Completed(message=f"trial {number}: {message}{again}", data=trial)
