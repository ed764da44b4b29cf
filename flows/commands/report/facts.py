"""Collects a study's facts for its HTML report: from its record, the files of its jobs, and its space."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from nasflow.config.search import SearchConfig
from nasflow.report.choices import space_domains
from nasflow.report.curves import Curves
from nasflow.report.html.data import JobRun, RoundFact, RunEnd, StudyFacts
from nasflow.report.html.plot import thinned
from nasflow.report.html.sections import CURVES
from nasflow.report.model.tree import Block, model_outline
from nasflow.report.text import error_headline, numbers_text
from nasflow.space.domain import Domain
from nasflow.study.records import Attempt, AttemptKind, AttemptState
from nasflow.study.study import Study
from nasflow.trial import FailureKind, Trial

from .job_files import JobStory, job_story

if TYPE_CHECKING:
    from nasflow.report.plans import Plan

_BEST = 20
_DRAWN = 3
_GREY_CURVES = 200


@dataclass
class _OfSpace:
    """Facts about the trials that come from the space."""

    domains: dict[str, Domain] = field(default_factory=dict)
    models: dict[int, Block] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)


def study_facts(study: Study) -> StudyFacts:
    """Return everything that a report shows of a study. The study may be empty or still running."""
    trials, best = study.trials(), study.leaderboard(_BEST)
    attempts = study.attempts()
    stories = {job: job_story(study.config.study_dir, job) for attempt in attempts for job in _jobs(attempt)}
    of_space = _ask_space(study.config, trials, best[:_DRAWN])
    return StudyFacts(
        config=study.config,
        created_at=study.created_at,
        made_at=datetime.now(UTC),
        rounds=[RoundFact(r.number, r.state, r.seconds, r.message) for r in study.rounds()],
        trials=trials,
        best=best,
        curves=_curves(study, trials, best[:CURVES]),
        domains=of_space.domains,
        models=of_space.models,
        runs=[run for attempt in attempts for run in _runs(attempt, stories)],
        plans=_plans(attempts, stories),
        missing=of_space.missing,
    )


def _ask_space(config: SearchConfig, trials: Sequence[Trial], best: Sequence[Trial]) -> _OfSpace:
    if not trials:
        return _OfSpace()
    from nasflow.evaluator.candidate import Candidate, candidate_space  # noqa: PLC0415 - slow

    found = _OfSpace()
    try:
        space = candidate_space(config.space, config.evaluator, config.base_dir)
        for trial in best:
            candidate: Candidate = space.validate(trial.architecture)
            found.models[trial.number] = model_outline(candidate.model)
        found.domains = space_domains(space, [trial.architecture for trial in trials if trial.status.scored])
    except Exception as error:  # the user's own code, which may have moved or changed since
        reason = error_headline(f"{type(error).__name__}: {error}")
        found.missing.append(f"The space can't be used here, so its choices' ranges are guessed ({reason}).")
    return found


def _curves(study: Study, trials: Sequence[Trial], best: Sequence[Trial]) -> Curves:
    """Return the curves of the best trials, then of others, evenly spaced."""
    first = [trial.number for trial in best]
    others = [t.number for t in trials if t.epochs and t.replayed_from is None and t.number not in first]
    numbers = [*first, *thinned(others, _GREY_CURVES)]
    epochs = study.epochs(numbers)
    return {number: [(record.epoch, record.metrics) for record in epochs[number]] for number in numbers}


def _jobs(attempt: Attempt) -> set[str]:
    return {job for job in (attempt.job_id, *(ending.job_id for ending in attempt.endings)) if job is not None}


def _runs(attempt: Attempt, stories: dict[str, JobStory]) -> Iterator[JobRun]:
    """Yield the attempt's jobs that ended badly, then the one that is running or ended well."""
    times = [(ending.job_id, ending.slot, ending.started_at, ending.ended_at) for ending in attempt.endings]
    ends = [(_end(ending.failure), ending.error) for ending in attempt.endings]
    if attempt.state in (AttemptState.RUNNING, AttemptState.SUCCEEDED):
        times.append((attempt.job_id, attempt.slot, attempt.started_at, attempt.ended_at))
        running = attempt.state is AttemptState.RUNNING
        ends.append((RunEnd.RUNNING if running else RunEnd.SUCCEEDED, attempt.error))
    elif times and times[-1][2] is None:  # a record from before endings had times
        times[-1] = (attempt.job_id, attempt.slot, attempt.started_at, attempt.ended_at)
    for place, ((job, slot, submitted, ended), (end, error)) in enumerate(zip(times, ends, strict=True)):
        if job is None or submitted is None:
            continue
        began = min(max(submitted, stories[job].began or submitted), ended or datetime.now(UTC))
        retry = place > 0 or attempt.kind is AttemptKind.ALONE
        yield JobRun(job, attempt.members, slot, submitted, began, ended, end, retry, error)


def _end(failure: FailureKind | None) -> RunEnd:
    if failure is None:
        return RunEnd.CANCELLED
    return RunEnd.FAILED if failure is FailureKind.TRIAL else RunEnd.LOST


def _plans(attempts: Sequence[Attempt], stories: dict[str, JobStory]) -> "dict[str, list[Plan]]":
    """Return the plans of the newest job of each batch."""
    found: dict[str, list[Plan]] = {}
    for attempt in attempts:
        if attempt.kind is AttemptKind.BATCH and attempt.job_id is not None and stories[attempt.job_id].plans:
            name = f"round {attempt.round}, batch {attempt.number} (trials {numbers_text(attempt.members)})"
            found[name] = list(stories[attempt.job_id].plans)
    return found
