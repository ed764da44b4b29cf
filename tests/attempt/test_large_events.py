"""An events file of any size is followed to its end."""

import logging
import threading
from pathlib import Path

import pytest

from nasflow.attempt.follower import AttemptFollower
from nasflow.config.search import parse_config
from nasflow.config.services.debug import DebugServiceConfig
from nasflow.job.events import Event
from nasflow.job.spec import JobSpec, MemberSpec
from nasflow.space.architecture import Architecture
from nasflow.study.records import AttemptState
from nasflow.study.study import Study
from nasflow.training_service.debug import DebugService
from tests.attempt.large_events import MANY


def test_a_large_file_with_a_line_that_is_too_long(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = parse_config(
        {
            "name": "large",
            "space": {"target": "a:b"},
            "evaluator": {"kind": "classification", "data": {"target": "nasflow.evaluator.data:Wine"}},
            "training_service": {"kind": "debug"},
            "store": f"sqlite:///{tmp_path / 'study.db'}",
            "work_dir": tmp_path / "runs",
        }
    )
    study = Study.open(config)
    study.begin_round(0)
    [trial] = study.submit_trials(0, [Architecture({"width": 1})])
    member = MemberSpec(trial=trial.number, architecture=trial.architecture, seed=trial.seed)
    [attempt] = study.plan_batches(0, [[trial.number]])
    service = DebugService(DebugServiceConfig(), config.study_dir, runner="tests.attempt.large_events:write_much")
    events: list[Event] = []
    with caplog.at_level(logging.WARNING):
        ended = AttemptFollower(study, service, threading.Event()).follow(
            attempt,
            lambda job_id: JobSpec.of_search(config, job_id, config.evaluator.data, [member]),
            events.append,
        )
    assert ended.state is AttemptState.SUCCEEDED
    assert study.trial(trial.number).metrics == {"val_accuracy": 0.5}
    assert len(events) == MANY + 3
    assert caplog.text.count("skipped a line that is no event") == 1
    assert len(caplog.text) < 1000
    study.close()
