"""What a search with rounds ahead proposes does not depend on when rounds end, or on restarts."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from nasflow.config.search import SearchConfig
from nasflow.errors import ConfigError
from nasflow.flows.session.proposals import Proposals
from nasflow.flows.session.session import search_session
from nasflow.space.architecture import Architecture
from nasflow.space.space import Space
from nasflow.strategy.base import Strategy
from nasflow.strategy.begin_with import BeginWith
from nasflow.strategy.make import make_strategy
from nasflow.study.records import AttemptState, FinalRecord, RoundState
from nasflow.study.study import Study
from nasflow.testing.strategy import ACCURACY, contract_program, finished

ROUNDS, TRIALS = 5, 6


class Search:
    """A search whose trials are scored by their architecture; `begin` and `end` are what a round does."""

    def __init__(self, study: Study, kind: str, ahead: int):
        self.study, self.kind, self.ahead = study, kind, ahead
        self.restart()

    def restart(self) -> None:
        config = SearchConfig.model_validate(
            {
                "name": "s",
                "space": {"target": "none:none"},
                "evaluator": {"kind": "classification", "data": {"target": "none:none"}},
                "strategy": {"kind": self.kind} | ({"population": 6} if self.kind == "evolution" else {}),
            }
        )
        strategy = make_strategy(config.strategy, Space(contract_program), [ACCURACY], 5, config.base_dir)
        self.proposals = Proposals(strategy, self.study, self.ahead)

    def begin(self, number: int) -> None:
        self.study.begin_round(number)
        self.study.submit_trials(number, self.proposals.ask(number, TRIALS))

    def train(self, number: int) -> None:
        trials = self.study.trials(round=number)
        [attempt] = self.study.plan_batches(number, [[trial.number for trial in trials]])
        self.study.start_attempt(attempt.id, "job")
        scored = [finished(trial.number, number, trial.architecture) for trial in trials]
        finals = [FinalRecord(one.number, dict(one.metrics), 1) for one in scored if one.metrics]
        self.study.record_outcome(attempt.id, AttemptState.SUCCEEDED, finals)
        for one in scored:
            self.study.fail_trial(one.number, "it failed")  # those without a result

    def end(self, number: int) -> None:
        self.train(number)
        self.study.end_round(number, RoundState.COMPLETED)
        self.proposals.ended(number)

    @property
    def proposed(self) -> list[tuple[int, str]]:
        return [(trial.round, trial.architecture.to_json()) for trial in self.study.trials()]


@contextmanager
def opened(folder, name: str) -> Iterator[Study]:
    config = SearchConfig.model_validate(
        {
            "name": name,
            "space": {"target": "none:none"},
            "evaluator": {"kind": "classification", "data": {"target": "none:none"}},
            "store": f"sqlite:///{folder}/{name}.db",
            "work_dir": str(folder),
        }
    )
    study = Study.open(config)
    try:
        yield study
    finally:
        study.close()


@pytest.mark.parametrize(("kind", "ahead"), [("evolution", 0), ("evolution", 1), ("tpe", 2), ("grid", 1)])
def test_proposals_depend_on_no_time_and_no_restart(tmp_path, kind, ahead):
    with opened(tmp_path, "late") as study:
        late = Search(study, kind, ahead)
        for number in range(ROUNDS + ahead):
            if number - 1 - ahead >= 0:
                late.end(number - 1 - ahead)  # as late as it may
            if number < ROUNDS:
                late.begin(number)
        expected = late.proposed
    with opened(tmp_path, "early") as study:
        early = Search(study, kind, ahead)
        for number in range(ROUNDS):
            early.begin(number)
            if number >= ahead:
                early.end(number - ahead)
            if number % 2:
                early.restart()
        assert early.proposed == expected
    with opened(tmp_path, "all") as study:
        restarted = Search(study, kind, ahead)
        for number in range(ROUNDS):
            restarted.restart()
            restarted.begin(number)
            for earlier in range(number + 1):  # all that runs ends before the next round begins
                if study.rounds()[earlier].state is RoundState.RUNNING:
                    restarted.end(earlier)
        assert restarted.proposed == expected


def test_a_round_ahead_does_not_know_the_results_before_it(tmp_path):
    found = []
    for ahead in (0, 1):
        with opened(tmp_path, f"ahead-{ahead}") as study:
            search = Search(study, "evolution", ahead)
            for number in range(ROUNDS):
                search.begin(number)
                search.end(number)
            found.append(search.proposed)
    assert found[0] != found[1] and found[0][:TRIALS] == found[1][:TRIALS]


def test_a_strategy_that_needs_each_rounds_results_is_refused(tmp_path):
    config = SearchConfig.model_validate(
        {
            "name": "custom",
            "space": {"target": "tests.flows.models.spaces:mixed"},
            "evaluator": {"kind": "classification", "data": {"target": "nasflow.evaluator.data:DigitsRows"}},
            "strategy": {"kind": "custom", "target": "tests.flows.models.strategies:Stubborn"},
            "budget": {"rounds_ahead": 1},
            "store": f"sqlite:///{tmp_path}/nasflow.db",
            "work_dir": str(tmp_path),
        }
    )
    with pytest.raises(ConfigError, match=r"budget\.rounds_ahead: Stubborn needs the results"), search_session(config):
        pytest.fail("it is not refused")


class Returns(Strategy):
    """A user's strategy that returns this, whatever it is asked for."""

    def __init__(self, asked):
        self.asked = asked

    def ask(self, count):
        return self.asked

    def tell(self, trials):
        pass


@pytest.mark.parametrize("given", [[], [Architecture({"width": 8})]])
def test_what_a_strategy_returns_is_a_list_of_architectures_or_refused(tmp_path, given):
    two = [Architecture({"width": width}) for width in (12, 16)]

    def ask(asked) -> list[Architecture]:
        strategy = BeginWith(given, Returns(asked)) if given else Returns(asked)
        return Proposals(strategy, study, 0).ask(0, len(given) + 2)

    with opened(tmp_path, "own") as study:
        assert ask(one for one in two) == given + two
        for wrong, what in (([dict(two[0])], "a dict"), (None, "a NoneType"), (two * 3, "6 architectures")):
            with pytest.raises(ConfigError, match=rf"^strategy\.target: its `ask\(2\)` returned {what}; let it return"):
                ask(wrong)


def test_the_time_of_rounds_that_overlap_counts_once(tmp_path, monkeypatch):
    now = [100.0]
    monkeypatch.setattr("nasflow.study.base.time.monotonic", lambda: now[0])
    with opened(tmp_path, "clock") as study:
        study.begin_round(0)
        now[0] += 10
        study.begin_round(1)
        now[0] += 5
        study.end_round(0, RoundState.COMPLETED)
        now[0] += 3
        study.end_round(1, RoundState.COMPLETED)
        assert [record.seconds for record in study.rounds()] == [15, 3]
        study.begin_round(2)
        now[0] += 1
        study.end_round(2, RoundState.COMPLETED)
        assert study.seconds_spent() == 19
