"""nasflow's search without Prefect, to show Prefect's cost: `python -m benchmarks.orchestration.plain CONFIG.yaml`.

Rounds, batches, jobs and records are those of `nasflow run`. A loop replaces flows and tasks, a thread replaces a task
run, and nothing is retried or shown.
"""

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from nasflow.config.search import SearchConfig, load_config
from nasflow.flows.budget import rounds_left
from nasflow.flows.rounds.round_flow import unfinished
from nasflow.flows.session.session import SearchSession, search_session
from nasflow.job.placement import Load, place
from nasflow.job.spec import JobSpec, MemberSpec
from nasflow.study.records import Attempt, RoundState


def run_round(session: SearchSession, number: int) -> None:
    """Propose, train and record one round."""
    study, budget = session.study, session.config.budget
    study.begin_round(number)
    left = (budget.trials or 0) - sum(study.counts().values())
    trials = study.submit_trials(number, session.ask(number, min(left, budget.trials_per_round)))
    loads = [Load(trial.number, "", session.outline(trial).parameters) for trial in trials]
    jobs = len(session.service.slots()) * session.config.merge.jobs_per_slot
    with ThreadPoolExecutor(jobs) as threads:
        list(threads.map(lambda batch: train(session, batch), study.plan_batches(number, place(loads, jobs))))
    if failed := unfinished(session, number):
        raise RuntimeError(f"{len(failed)} trials are not trained")
    study.end_round(number, RoundState.COMPLETED)
    session.proposals.ended(number)


def train(session: SearchSession, attempt: Attempt) -> None:
    """Train one job."""
    config, trials = session.config, [session.study.trial(number) for number in attempt.members]

    def make_spec(job_id: str) -> JobSpec:
        return JobSpec(
            job_id=job_id,
            study=config.name,
            space=config.space,
            evaluator=config.evaluator,
            data=session.outline(trials[0]).data,
            checkpoint=config.checkpoint,
            data_seed=config.seed,
            base_dir=config.base_dir,
            members=[MemberSpec(trial=t.number, architecture=t.architecture, seed=t.seed) for t in trials],
            merge=config.merge,
            places=config.merge.max_members,
            objectives=config.objectives,
        )

    session.follower.follow(attempt, make_spec, lambda event: None)


def main(config: SearchConfig) -> None:
    """Run the search to the end of its budget."""
    with search_session(config) as session:
        for number in rounds_left(session.study):
            run_round(session, number)


if __name__ == "__main__":
    main(load_config(Path(sys.argv[1])))
