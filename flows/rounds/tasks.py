"""The tasks of a round. Each can be run again at any time: what the study has recorded is not done twice.

How often a task is tried again `train_trials` sets from the config's `retry`; after which delay, `await_retry`.
"""

from collections.abc import Mapping, Sequence

from prefect import get_run_logger, task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State, TaskRun
from prefect.states import Completed
from prefect.tasks import Task

from nasflow.attempt.verdict import lacks_memory
from nasflow.checkpoint.carried import carry_over
from nasflow.errors import InfrastructureError, SpaceError, StudyError, TrialError
from nasflow.evaluator.loading.data_source import fingerprint
from nasflow.job.events import Alert, Epoch, Event, Evicted, Final, Measured, Planned
from nasflow.job.placement import Load, place, place_on_devices
from nasflow.job.spec import DEVICE_FAULT, JobSpec, MemberSpec, PeerSpec, trial_dir
from nasflow.report.text import failures_text, numbers_text
from nasflow.study.lease import LeaseLostError
from nasflow.study.records import Attempt, AttemptKind, AttemptState
from nasflow.training_service.base import JobState
from nasflow.trial import FailureKind, Trial, TrialStatus

from ..session.control import cancelled_if_interrupted
from ..session.session import SearchSession
from ..ui.artifacts import Progress, artifact_key
from ..ui.run_page import tag_task_run
from ..ui.task_messages import await_retry, failed, note_error


class RepeatedTrialError(TrialError):
    """Raised when a trial failed alone in the same way as before, so another try would change nothing."""


@task(
    name="submit trials",
    description="Take the next architectures from the strategy and record them as trials.",
    cache_policy=NO_CACHE,
    task_run_name="submit trials of round {number}",
)
def submit_trials(session: SearchSession, number: int) -> list[Trial]:
    """Return the trials of a round: those recorded, or else new proposals. Empty when the space is exhausted."""
    tag_task_run()
    study, budget = session.study, session.config.budget
    trials = study.trials(round=number)
    planned = bool(trials and study.batches(number))
    if not trials:
        left = budget.trials - sum(study.counts().values()) if budget.trials is not None else budget.trials_per_round
        proposals = session.ask(number, min(budget.trials_per_round, max(0, left)))
        trials = study.submit_trials(number, proposals)
    unfit = end_unfit(session, trials)  # also of those on record: their space may have changed since
    trials = study.trials(round=number)
    if planned:
        session.events.ended(unfit)
    else:
        session.events.submitted(trials)
    return trials


def end_unfit(session: SearchSession, trials: Sequence[Trial]) -> list[Trial]:
    """Record that those trials are INVALID that are not finished and do not fit the space, and return them."""
    unfit = []
    for trial in trials:
        if not trial.status.finished:
            try:
                session.outline(trial)
            except SpaceError as error:
                unfit.append(session.study.fail_trial(trial.number, str(error), TrialStatus.INVALID))
    return unfit


@task(
    name="batch trials",
    description="Choose which trials train together in one job.",
    cache_policy=NO_CACHE,
    task_run_name="batch trials of round {number}",
)
def batch_trials(session: SearchSession, number: int) -> list[Attempt]:
    """Return the batches of a round: those recorded, or else its untrained trials, grouped by data and cost.

    There are `merge.jobs_per_slot` jobs per slot, or one job per trial if merging is disabled. Trials that are trained
    on several devices at once have jobs of their own, which come first.
    """
    tag_task_run()
    if present := session.study.batches(number):
        return present
    loads = []
    for trial in session.study.trials(TrialStatus.SUBMITTED, round=number):
        if trial.replayed_from is None:
            outline = session.outline(trial)
            loads.append(Load(trial.number, fingerprint(outline.data), outline.parameters))
    config = session.config
    wide = [load for load in loads if config.is_wide(int(load.cost))]
    others = [load for load in loads if load not in wide]
    jobs = len(session.service.slots()) * config.merge.jobs_per_slot
    groups = place(others, jobs) if config.merge.enabled else [[load.trial] for load in others]
    return session.study.plan_batches(number, [[load.trial] for load in wide] + groups)


def _may_help(task: Task[..., object], task_run: TaskRun, state: State[object]) -> bool:
    """Whether to retry: after an error of infrastructure, store or files, and a trial's unless it repeats itself."""
    error = state.result(raise_on_failure=False)
    if isinstance(error, RepeatedTrialError | LeaseLostError):
        return False
    if isinstance(error, InfrastructureError | TrialError | StudyError | OSError):
        note_error(task_run, error)
        return True
    return False


@task(
    name="train batch",
    description="Train several trials in one job; a job that was lost is started again from its checkpoints.",
    cache_policy=NO_CACHE,
    task_run_name="train batch {attempt.number} of round {attempt.round}: trials {numbers}",
    retry_condition_fn=_may_help,
)
@cancelled_if_interrupted
def train_batch(session: SearchSession, attempt: Attempt, numbers: str) -> State[Attempt]:
    """Train the members of a batch in one job until its outcome is recorded; `numbers` is for the task run's name.

    A member that failed by its own fault waits for train_alone. If a job crashed before all members had a place in it,
    the next job trains the rest. If a job ran out of memory, or lost its GPU, the next has half the places.

    The state is FAILED with an InfrastructureError if a job was lost. A retry continues from the batch's checkpoints.
    """
    tag_task_run()
    again = await_retry(session.config.retry.delay_seconds, session.stop.wait)
    session.refuse_interrupted()
    study = session.study
    attempt = study.attempt(attempt.id)
    given_up = {  # to separate jobs, which may run on since an earlier controller was killed
        number for other in study.attempts(round=attempt.round, kind=AttemptKind.ALONE) for number in other.members
    }
    while attempt.state is not AttemptState.SUCCEEDED:
        trials = study.trials_numbered(attempt.members)
        members = [t for t in trials if not t.status.finished and t.error is None and t.number not in given_up]
        if not members:
            break
        attempt = _follow(session, attempt, members, [trial for trial in trials if trial not in members])
        if attempt.failure is FailureKind.INFRASTRUCTURE and not _goes_on(session, attempt, members):
            return failed(InfrastructureError(attempt.error))
        if attempt.state is not AttemptState.SUCCEEDED:
            get_run_logger().warning("blamed on its trials: %s", attempt.error)
    trials = study.trials_numbered(attempt.members)
    trained = f"{sum(trial.status.scored for trial in trials)} of {len(trials)} trials trained"
    lost = any(ending.evidence.get("exit_code") == DEVICE_FAULT for ending in attempt.endings)
    why = "after a fault of the GPU" if lost else "for want of memory"
    fewer = f", at most {attempt.places} at a time {why}" if attempt.places else ""
    errors = failures_text([trial for trial in trials if not trial.status.scored])
    return Completed(message=trained + fewer + (f"; not trained: {errors}" if errors else "") + again, data=attempt)


@task(
    name="train alone",
    description="Train one trial by itself, after it failed in a batch; tried again unless it fails the same way.",
    cache_policy=NO_CACHE,
    task_run_name="train trial {number} of round {round} alone",
    retry_condition_fn=_may_help,
)
@cancelled_if_interrupted
def train_alone(session: SearchSession, number: int, round: int) -> State[Trial]:
    """Train one trial by itself, from its newest checkpoint; `round` is for the task run's name.

    The state is FAILED with an InfrastructureError if the job was lost, with a TrialError if the trial failed, and with
    a RepeatedTrialError if it would only fail again.
    """
    tag_task_run()
    again = await_retry(session.config.retry.delay_seconds, session.stop.wait)
    session.refuse_interrupted()
    study = session.study
    trial = study.trial(number)
    if not trial.status.finished:
        before = trial.error
        ended = _follow(session, study.new_attempt(number), [trial])
        while _goes_on(session, ended, [trial]):
            trial = study.trial(number)
            ended = _follow(session, study.new_attempt(number), [trial])
        if ended.failure is FailureKind.INFRASTRUCTURE:
            return failed(InfrastructureError(ended.error))
        trial = study.trial(number)
        if not trial.status.scored:
            error = trial.error or "the job ended without a result for the trial"
            hangs = _limit(ended) is not None and _headline(before).startswith(_headline(ended.error))
            return failed((RepeatedTrialError if hangs or _repeats(session, ended) else TrialError)(error))
    return Completed(message=f"trial {number}: {trial.status}{again}", data=trial)


def _follow(session: SearchSession, attempt: Attempt, trials: Sequence[Trial], left: Sequence[Trial] = ()) -> Attempt:
    """Follow an attempt at `trials` to its outcome, with a progress bar in the UI; `left` are its other members."""
    epochs = {trial.number: session.outline(trial).epochs for trial in trials}
    on_record = {trial.number: trial.epochs for trial in trials}
    config = session.config
    progress = Progress(*_progress_names(config.name, attempt))
    done = dict.fromkeys(epochs, 0)
    heard, where = False, ""
    wide = config.is_wide(session.outline(trials[0]).parameters)
    if not wide and _needs_more_memory(session, trials[0]):
        wide = True
        get_run_logger().info("trial %s needs more memory than a device has, and gets several", trials[0].number)

    def make_spec(job_id: str) -> JobSpec:
        for trial in trials:
            if (ended := session.study.stopped_before(trial)) is not None:
                folder = trial_dir(config.study_dir, trial.number)
                carry_over(trial_dir(config.study_dir, ended.number), folder, session.study.generation)
        device = _devices(session, [*trials, *left], 1 if wide else config.devices_of_job)
        members = [
            MemberSpec(trial=t.number, architecture=t.architecture, seed=t.seed, device=device[t.number])
            for t in trials
        ]
        data = session.outline(trials[0]).data
        return JobSpec.of_search(
            config,
            job_id,
            data,
            members,
            places=attempt.places,
            peers=_peers(session, left, device),
            generation=session.study.generation,
            copies=session.study.copies,
            kernel_costs=session.kernel_costs.given() if config.merge.fuse == "measured" else None,
            wide=wide,
        )

    def on_event(event: Event) -> None:
        nonlocal heard
        heard = True
        if isinstance(event, Epoch | Final | Evicted) and event.trial not in epochs:
            return  # it has become INVALID since this job began
        if isinstance(event, Epoch):
            done[event.trial] = max(done[event.trial], event.epoch)
            if event.epoch > on_record[event.trial]:
                session.events.epoch(attempt.round, event)
        elif isinstance(event, Final | Evicted):  # the trial has no further epochs
            done[event.trial] = epochs[event.trial]
        elif isinstance(event, Alert):
            get_run_logger().warning(event.text)
        elif isinstance(event, Planned):
            for trial, reason in event.differing.items():
                get_run_logger().warning("trial %s trains by itself: %s", trial, reason)
        elif isinstance(event, Measured):
            session.kernel_costs.add(event.place, event.figures)
        session.tell(attempt, event)

    def on_look(state: JobState) -> None:
        nonlocal where
        if state.where and state.where != where:
            where = state.where
            get_run_logger().info("its job is in slot %s: %s", state.slot, where)
        if heard:  # the job has begun
            progress.update(sum(done.values()) / sum(epochs.values()))

    with session.jobs.job(attempt):
        ended = session.follower.follow(attempt, make_spec, on_event, on_look, session.jobs.turn(attempt))
    progress.update(1.0, last=True)
    session.events.ended(session.study.trials_numbered(epochs))
    return ended


def _progress_names(study: str, attempt: Attempt) -> tuple[str, str]:
    """Return key and description of an attempt's progress bar. A trial's attempts alone share one bar."""
    if attempt.kind is AttemptKind.ALONE:
        (trial,) = attempt.members
        return artifact_key(study, "round", attempt.round, "trial", trial), f"Epochs of trial {trial}, alone"
    key = artifact_key(study, "round", attempt.round, attempt.kind, attempt.number)
    trials = numbers_text(attempt.members)
    return key, f"Epochs of batch {attempt.number} of round {attempt.round}: trials {trials}"


def _needs_more_memory(session: SearchSession, trial: Trial) -> bool:
    """Whether a trial has run out of memory by itself, and can be trained on several devices instead of one."""
    if session.config.evaluator.parallel is None:
        return False
    alone = session.study.attempts(trial=trial.number, kind=AttemptKind.ALONE)
    return any(map(lacks_memory, [trial.error, *(attempt.error for attempt in alone)]))


def _devices(session: SearchSession, trials: Sequence[Trial], count: int) -> dict[int, int]:
    """Return by trial which of its job's devices trains it: the same in each start of the job."""
    return place_on_devices({trial.number: _parameters(session, trial) for trial in trials}, count)


def _parameters(session: SearchSession, trial: Trial) -> int:
    """Return a trial's number of parameters: the recorded one, or 0, if it is finished and fits the space no more."""
    try:
        return session.outline(trial).parameters
    except SpaceError:
        if not trial.status.finished:
            raise
        return int(trial.metrics.get("parameters", 0))


def _peers(session: SearchSession, trials: Sequence[Trial], device: Mapping[int, int]) -> list[PeerSpec]:
    """Return the peers: members that no longer train in this job, with their recorded epochs."""
    known = session.study.epochs([trial.number for trial in trials])
    return [
        PeerSpec(
            trial=trial.number,
            architecture=trial.architecture,
            seed=trial.seed,
            device=device[trial.number],
            history=[dict(record.metrics) for record in known[trial.number]],
            parameters=_parameters(session, trial),
            failed=not trial.status.finished,
        )
        for trial in trials
    ]


def _repeats(session: SearchSession, ended: Attempt) -> bool:
    """Whether an attempt at a trial alone got no further than an earlier one that ended with the same error."""
    number = ended.members[0]
    if any(record.attempt_id == ended.id for record in session.study.epochs([number])[number]):
        return False
    return any(
        attempt.id != ended.id
        and attempt.failure is FailureKind.TRIAL
        and _headline(attempt.error) == _headline(ended.error)
        for attempt in session.study.attempts(trial=number, kind=AttemptKind.ALONE)
    )


def _goes_on(session: SearchSession, attempt: Attempt, before: Sequence[Trial]) -> bool:
    """Whether an attempt's last job had its whole time and used it, or was preempted and saved: the next is no retry.

    Args:
        before: the trials of the job, as they were before it.
    """
    if attempt.endings and attempt.endings[-1].evidence.get("preempted"):
        return True
    if _limit(attempt) != "job":
        return False
    after = session.study.trials_numbered(trial.number for trial in before)
    return sum(trial.epochs for trial in after) > sum(trial.epochs for trial in before)


def _limit(attempt: Attempt) -> str | None:
    """Return the limit for which an attempt's last job was ended; None for none."""
    return attempt.endings[-1].evidence.get("limit") if attempt.endings else None


def _headline(error: str | None) -> str:
    return (error or "").partition("\n")[0]
