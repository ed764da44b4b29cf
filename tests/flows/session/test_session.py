"""What the flows of a search share."""

import pytest

from nasflow.config.search import SearchConfig
from nasflow.errors import SpaceError
from nasflow.flows.session.session import search_session
from nasflow.space.architecture import Architecture
from tests.flows.models.spaces import mixed

BUILT = []


def counted(pick):
    """Notes what is built, and where."""
    model = mixed(pick, widths=list(range(4, 64)))
    BUILT.append(next(model.parameters()).device.type)
    return model


@pytest.fixture
def session(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = SearchConfig.model_validate(
        {
            "name": "counted",
            "space": {"target": f"{__name__}:counted"},
            "evaluator": {"kind": "classification", "data": {"target": "nasflow.evaluator.data:DigitsRows"}},
        }
    )
    with search_session(config) as opened:
        yield opened


def test_what_the_strategy_has_built_is_not_built_again(session):
    BUILT.clear()
    proposals = session.ask(0, 5)
    built = len(BUILT)
    assert built >= 5
    session.study.begin_round(0)
    for trial in session.study.submit_trials(0, proposals):
        session.check(trial)
        assert session.outline(trial).parameters == sum(
            p.numel() for p in session.space.validate(trial.architecture).model.parameters()
        )
    assert len(BUILT) == built + 5  # by this test
    assert set(BUILT) == {"meta"}


def test_what_it_has_not_built_is_checked(session):
    session.ask(0, 2)
    session.study.begin_round(0)
    right, wrong = session.study.submit_trials(
        0, [Architecture({"kind": "ok", "width": 5}), Architecture({"kind": "ok", "width": 1000})]
    )
    session.check(right)
    with pytest.raises(SpaceError, match="width"):
        session.check(wrong)
