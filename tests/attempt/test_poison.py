"""No text and no number of a job makes its study unreadable: a bad text is cleaned, a bad line is skipped."""

import json
import logging
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nasflow.attempt.follower import AttemptFollower
from nasflow.config.search import SearchConfig, parse_config
from nasflow.config.services.debug import DebugServiceConfig
from nasflow.job.events import Ended, Epoch, Final, Started
from nasflow.job.spec import JobSpec, MemberSpec
from nasflow.space.architecture import Architecture
from nasflow.study.records import Attempt, AttemptState, RoundState
from nasflow.study.study import Study
from nasflow.training_service.debug import DebugService
from nasflow.trial import TrialStatus
from tests.attempt.poison import TEXT

CLEAN = r"no file caf\udce9.png\x00 in the archive"
OUT_OF_BOUNDS = (2**31, 2**63, 10**30, 10**400, -1)


@pytest.fixture
def config(store_url: str, tmp_path: Path) -> SearchConfig:
    return parse_config(
        {
            "name": "poisoned",
            "space": {"target": "poison.py:build"},
            "evaluator": {
                "kind": "classification",
                "data": {"target": "nasflow.evaluator.data:Wine"},
                "epochs": 1,
            },
            "training_service": {"kind": "debug"},
            "store": store_url,
            "work_dir": tmp_path / "runs",
            "base_dir": Path(__file__).parent,
        }
    )


@pytest.fixture
def study(config: SearchConfig) -> Iterator[Study]:
    """A study with two trials, of which the first fails if it is trained."""
    study = Study.open(config)
    study.begin_round(0)
    study.submit_trials(0, [Architecture({"fails": fails}) for fails in (True, False)])
    yield study
    study.close()


def follow(study: Study, service: DebugService, make_spec: Callable[[str], JobSpec]) -> Attempt:
    [attempt] = study.plan_batches(0, [[0, 1]])
    follower = AttemptFollower(study, service, threading.Event())
    return follower.follow(attempt, make_spec, lambda event: None)


def members(study: Study) -> list[MemberSpec]:
    return [MemberSpec(trial=t.number, architecture=t.architecture, seed=t.seed) for t in study.trials()]


def make_lines(study: Study, lines: list[str], code: int = 0) -> Attempt:
    """Follow a job that reports these lines."""
    config = study.config
    service = DebugService(DebugServiceConfig(), config.study_dir, runner="tests.attempt.poison:write_lines")

    def make_spec(job_id: str) -> JobSpec:
        spec = JobSpec.of_search(config, job_id, config.evaluator.data, members(study))
        params = {"lines": lines, "code": code}
        return spec.model_copy(update={"space": spec.space.model_copy(update={"params": params})})

    return follow(study, service, make_spec)


def line(event: Any, **changes: Any) -> str:
    return json.dumps({**event.model_dump(mode="json"), **changes})


@pytest.fixture
def again(study: Study) -> Iterator[Study]:
    """The study as the next controller opens it."""
    again = Study.open(study.config)
    yield again
    again.close()


def test_an_exceptions_text_ends_as_a_readable_error(study: Study, again: Study) -> None:
    config = study.config
    service = DebugService(DebugServiceConfig(), config.study_dir)
    ended = follow(
        study, service, lambda job_id: JobSpec.of_search(config, job_id, config.evaluator.data, members(study))
    )
    assert ended.state is AttemptState.FAILED
    failed, trained = again.trials()
    assert failed.error is not None
    assert failed.error.startswith(f"ValueError: {CLEAN}\n")
    assert trained.status is TrialStatus.TRAINED


def test_the_text_of_a_job_that_could_not_run_is_readable(study: Study, again: Study) -> None:
    ended = make_lines(study, [line(Started(resumed={0: 0, 1: 0})), line(Ended(error="nul \0 in it"))])
    assert ended.error == r"nul \x00 in it"
    assert [trial.error for trial in again.trials()] == [r"nul \x00 in it (trained together: 0, 1)"] * 2


def test_the_log_of_a_job_that_crashed_is_readable(study: Study, again: Study) -> None:
    ended = make_lines(study, [line(Started(resumed={0: 0, 1: 0}))], code=3)
    assert ended.error is not None
    assert ended.error.splitlines()[1] == CLEAN
    [ending] = again.attempts()[0].endings
    assert (ending.error, ending.evidence["reason"]) == (ended.error, CLEAN)


def test_the_traceback_of_a_job_in_this_process_is_readable(study: Study, again: Study) -> None:
    config = study.config
    service = DebugService(DebugServiceConfig(), config.study_dir, runner="tests.attempt.poison:raise_text")
    ended = follow(
        study, service, lambda job_id: JobSpec.of_search(config, job_id, config.evaluator.data, members(study))
    )
    assert ended.error is not None
    assert ended.error.endswith(f"ValueError: {CLEAN}")
    assert again.attempt(ended.id).error == ended.error


def test_a_number_that_no_store_holds_is_no_event(study: Study, again: Study, caplog: pytest.LogCaptureFixture) -> None:
    epoch, final = Epoch(trial=0, epoch=1, metrics={"val_accuracy": 0.5}), Final(trial=0, epochs=1, metrics={})
    fields = [(epoch, "epoch"), (epoch, "trial"), (final, "epochs"), (final, "trial")]
    bad = [line(event, **{field: number}) for number in OUT_OF_BOUNDS for event, field in fields]
    good = [line(final, trial=number, metrics={"val_accuracy": 0.25}) for number in (0, 1)]
    with caplog.at_level(logging.WARNING):
        ended = make_lines(study, [line(Started(resumed={0: 0, 1: 0})), *bad, *good, line(Ended())])
    assert ended.state is AttemptState.SUCCEEDED
    assert caplog.text.count("skipped a line that is no event") == len(bad)
    assert [trial.metrics for trial in again.trials()] == [{"val_accuracy": 0.25}] * 2


def test_metrics_and_seconds_that_no_store_holds(study: Study, again: Study, caplog: pytest.LogCaptureFixture) -> None:
    epoch = Epoch(trial=0, epoch=1, metrics={})
    bad = [line(epoch, seconds=float("nan")), line(epoch, seconds=10**400)]
    metrics = {"val_accuracy": 0.5, "huge": 10**30, "far beyond": 10**400, "nul \0": 1.0, "not a number": float("nan")}
    good = [
        line(epoch, metrics=metrics),
        *(line(Final(trial=n, epochs=1, metrics={}), metrics=metrics) for n in (0, 1)),
    ]
    with caplog.at_level(logging.WARNING):
        make_lines(study, [line(Started(resumed={0: 0, 1: 0})), *bad, *good, line(Ended())])
    assert caplog.text.count("skipped a line that is no event") == len(bad)
    assert again.trial(1).metrics == {"val_accuracy": 0.5, "huge": 1e30, r"nul \x00": 1.0}
    assert again.epochs([0])[0][0].metrics["far beyond"] is None


def test_the_study_cleans_what_is_left(study: Study, again: Study) -> None:
    assert study.fail_trial(0, TEXT, TrialStatus.INVALID).error == CLEAN
    study.plan_batches(0, [[1]])
    ended = study.record_outcome(1, AttemptState.FAILED, failures={1: TEXT}, error=TEXT, slot="a\0b")
    assert (ended.error, ended.slot, ended.endings[0].error) == (CLEAN, r"a\x00b", CLEAN)
    assert study.end_round(0, RoundState.FAILED, TEXT).message == CLEAN
    assert [trial.error for trial in again.trials()] == [CLEAN, CLEAN]
    assert again.rounds()[0].message == CLEAN
