"""The last task of a round, and the artifacts of a search in the Prefect UI."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from prefect import task
from prefect.cache_policies import NO_CACHE

from nasflow.job.spec import trial_dir
from nasflow.report.curves import curves_markdown
from nasflow.report.leaderboard import leaderboard_markdown, leaderboard_rows
from nasflow.report.links import links_markdown
from nasflow.report.pareto import pareto_markdown
from nasflow.report.plans import merging_sentence, plans_markdown
from nasflow.report.summary import round_summary_markdown, search_summary_markdown
from nasflow.report.text import numbers_text
from nasflow.study.base import SCORED
from nasflow.study.records import RoundState
from nasflow.study.study import Study
from nasflow.trial import Trial, TrialStatus

from ..session.session import SearchSession
from ..ui.artifacts import MAX_ROWS, artifact_key, show_markdown
from ..ui.run_page import tag_task_run

_CURVES = 10


@dataclass(frozen=True)
class RoundSummary:
    """Number of trials of a round, by outcome. `scored` includes `replayed`."""

    number: int
    trials: int
    scored: int
    replayed: int
    failed: int

    @property
    def sentence(self) -> str:
        """The summary in one line."""
        again = f" ({self.replayed} of them known results replayed)" if self.replayed else ""
        return f"{self.scored} of {self.trials} trials scored{again}, {self.failed} failed"


@task(
    name="persist metrics",
    description="Record the end of the round, and show its results.",
    cache_policy=NO_CACHE,
    task_run_name="persist metrics of round {number}",
)
def persist_metrics(session: SearchSession, number: int) -> RoundSummary:
    """Settle replays of all rounds, record the end of the round, and show its results in the UI."""
    tag_task_run()
    study, config = session.study, session.config
    session.events.ended(study.settle_replays())
    trials = study.trials(round=number)
    summary = RoundSummary(
        number=number,
        trials=len(trials),
        scored=sum(trial.status.scored for trial in trials),
        replayed=sum(trial.replayed_from is not None and trial.status.scored for trial in trials),
        failed=sum(trial.status in (TrialStatus.FAILED, TrialStatus.INVALID) for trial in trials),
    )
    state = RoundState.COMPLETED if summary.scored or not trials else RoundState.FAILED
    study.end_round(number, state, summary.sentence)
    show_markdown(
        artifact_key(config.name, "round", number),
        round_summary_markdown(number, trials, config.objectives, _carried_epochs(study, trials)),
        f"Round {number} of {config.name}: {summary.sentence}",
    )
    show_plans(session, number)
    show_leaderboard(session)
    if session.page.pictures_due():
        show_pictures(session)
    return summary


def _carried_epochs(study: Study, trials: Sequence[Trial]) -> int:
    """How many of these trials' epochs were trained by the trials from which they went on."""
    before = ((trial, study.stopped_before(trial)) for trial in trials if trial.replayed_from is None)
    return sum(min(trial.epochs, earlier.epochs) for trial, earlier in before if earlier is not None)


def show_plans(session: SearchSession, number: int) -> None:
    """Create a Markdown artifact on how the trials of a round's batches were merged, if any job reported it."""
    config = session.config
    jobs: dict[str, list[dict[str, Any]]] = {}
    differing: dict[int, str] = {}
    for attempt in session.study.batches(number):
        for plan in session.follower.plans(attempt):
            name = f"Batch {attempt.number}: trials {numbers_text(attempt.members)}"
            jobs.setdefault(name, []).append(plan.model_dump(mode="json"))
            differing |= plan.differing
    if jobs:
        show_markdown(
            artifact_key(config.name, "round", number, "merging"),
            plans_markdown(number, jobs, differing),
            f"How round {number} of {config.name} was merged: {merging_sentence(jobs)}",
        )


def show_leaderboard(session: SearchSession) -> None:
    """Show the study's current leaderboard as a table on the search's page."""
    config = session.config
    rows = leaderboard_rows(session.study.leaderboard(MAX_ROWS), config.objectives, MAX_ROWS)
    session.page.show_table(artifact_key(config.name, "leaderboard"), rows, f"Best trials of {config.name}")


def show_pictures(session: SearchSession) -> None:
    """Show learning curves of the best trials on the search's page and, with several objectives, the Pareto front."""
    study, config = session.study, session.config
    best = study.leaderboard(_CURVES)
    epochs = study.epochs([trial.number for trial in best])
    curves = {number: [(record.epoch, record.metrics) for record in records] for number, records in epochs.items()}
    session.page.show_markdown(
        artifact_key(config.name, "curves"),
        curves_markdown(curves, config.objectives[0].metric),
        f"Learning curves of the best trials of {config.name}",
    )
    if len(config.objectives) > 1:
        session.page.show_markdown(
            artifact_key(config.name, "pareto"),
            pareto_markdown(study.trials(SCORED), config.objectives),
            f"Pareto front of {config.name}",
        )


def show_search(session: SearchSession) -> None:
    """Show the search's results and where they are stored, on its page."""
    study, config = session.study, session.config
    show_pictures(session)
    best = study.leaderboard(_CURVES)
    board = leaderboard_markdown(best, config.objectives, _CURVES)
    session.page.show_markdown(
        artifact_key(config.name, "summary"),
        search_summary_markdown(config.name, study.trials(), config.objectives) + "\n\n" + board,
        f"What {config.name} found",
    )
    session.page.show_markdown(
        artifact_key(config.name, "links"),
        links_markdown(config, (best[0].number, trial_dir(config.study_dir, best[0].number)) if best else None),
        f"Where {config.name} keeps what it found, and how to look further",
    )
