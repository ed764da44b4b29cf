"""What is left to run of a study, by its record."""

from contextlib import closing
from pathlib import Path

import pytest

from nasflow.config.search import SearchConfig
from nasflow.flows.budget import is_finished
from nasflow.space.architecture import Architecture
from nasflow.study.records import RoundState
from nasflow.study.study import Study


@pytest.mark.parametrize("ahead", [0, 1, 2])
def test_a_search_ends_with_the_rounds_that_knew_all_results_and_found_nothing(tmp_path: Path, ahead: int) -> None:
    config = SearchConfig.model_validate(
        {
            "name": "s",
            "space": {"target": "none:none"},
            "evaluator": {"kind": "classification", "data": {"target": "none:none"}},
            "budget": {"rounds": 20, "rounds_ahead": ahead},
            "store": f"sqlite:///{tmp_path}/nasflow.db",
            "work_dir": str(tmp_path),
        }
    )
    tried = ([1], [], [2], *[[]] * (ahead + 1))
    with closing(Study.open(config)) as study:
        finished = []
        for number, widths in enumerate(tried):
            study.begin_round(number)
            for trial in study.submit_trials(number, [Architecture({"width": width}) for width in widths]):
                study.fail_trial(trial.number, "it failed")
            study.end_round(number, RoundState.COMPLETED)
            finished.append(is_finished(study))
        empty_is_the_end = ahead == 0
        assert finished == [False, empty_is_the_end, False, *[False] * ahead, True]
