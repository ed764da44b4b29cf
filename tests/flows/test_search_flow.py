"""What ends a search beside the end of its budget."""

import pytest
from prefect.states import Completed

from nasflow.flows import search_flow
from nasflow.study.records import AttemptState, FinalRecord, RoundState
from tests.flows.rounds.test_tasks import opened


def test_an_error_of_a_users_strategy_ends_the_search_after_the_last_round_too(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    strategy = {"kind": "custom", "target": "strategies.py:Refusing"}
    with opened("refused", strategy=strategy, budget={"rounds": 1}) as session:

        def run_round(config, number, return_state):
            session.study.begin_round(number)
            session.study.submit_trials(number, session.ask(number, 1))
            [batch] = session.study.plan_batches(number, [[0]])
            session.study.start_attempt(batch.id, "job")
            session.study.record_outcome(batch.id, AttemptState.SUCCEEDED, [FinalRecord(0, {"val_accuracy": 0.5}, 1)])
            session.study.end_round(number, RoundState.COMPLETED)
            return Completed()

        monkeypatch.setattr(search_flow, "sampling_round", run_round)
        with pytest.raises(RuntimeError, match="trial 0 is refused"):
            search_flow.run_rounds(session)
