"""What the flows of a search share."""

from contextlib import closing

import pytest

from nasflow.config.search import SearchConfig
from nasflow.config.services.local import LocalServiceConfig
from nasflow.errors import ConfigError, ServiceError, SpaceError, StudyError
from nasflow.flows.commands import cleanup
from nasflow.flows.session import control
from nasflow.flows.session.control import suspendable
from nasflow.flows.session.session import search_session
from nasflow.space.architecture import Architecture
from nasflow.study.study import Study, study_names
from nasflow.training_service.local.service import LocalService
from tests.flows.models.spaces import mixed

BUILT = []


def counted(pick):
    """Notes what is built, and where."""
    model = mixed(pick, widths=list(range(4, 64)))
    BUILT.append(next(model.parameters()).device.type)
    return model


def config(**changes):
    values = {
        "name": "counted",
        "space": {"target": f"{__name__}:counted"},
        "evaluator": {"kind": "classification", "data": {"target": "nasflow.evaluator.data:DigitsRows"}},
    }
    return SearchConfig.model_validate({**values, **changes})


@pytest.fixture
def session(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with search_session(config()) as opened:
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


def test_an_open_session_is_joined_with_its_own_config_only(session):
    with search_session(config()) as joined:
        assert joined is session
    changed = config(seed=1, budget={"rounds": 7})
    with pytest.raises(StudyError, match=r"'counted' is open .* with another budget, seed: "), search_session(changed):
        pass
    assert not session.interrupted


def test_a_study_is_searched_once_at_a_time(session, monkeypatch):
    monkeypatch.setitem(control._controls, session, object())
    with pytest.raises(StudyError, match="'counted' runs in this process already"), suspendable(session.config):
        pass


def test_a_pass_that_is_none_is_refused_before_anything_trains(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    wrong = config(merge={"passes": ["math:pi"]})
    with pytest.raises(ConfigError, match=r"merge.passes: math:pi is not callable"), search_session(wrong):
        pass
    assert not [*tmp_path.iterdir()]


def test_a_search_with_the_wrong_store_leaves_no_study_there(tmp_path, monkeypatch):
    """Else `nasflow cleanup` with that store would end the jobs of the search to which the folder belongs."""
    monkeypatch.chdir(tmp_path)
    right, wrong = (config(store=f"sqlite:///{tmp_path}/{name}.db") for name in ("right", "wrong"))
    with search_session(right):
        pass
    with closing(Study.open(wrong)):  # as an earlier nasflow has left it
        monkeypatch.setattr(cleanup, "end_jobs", lambda _: pytest.fail("they are another study's"))
        with pytest.raises(StudyError, match="not the one in this store"):
            cleanup.clean_up(wrong, take_over=False)
    for _ in range(2):
        with pytest.raises(StudyError, match="not the one in this store"), search_session(wrong):
            pass
        assert study_names(wrong.store) == []
    assert study_names(right.store) == ["counted"]
    ended = []
    monkeypatch.setattr(cleanup, "end_jobs", ended.append)
    cleanup.clean_up(right, take_over=False)
    assert ended == [right]


class Unending(LocalService):
    """Can't end its jobs."""

    def cleanup(self):
        super().cleanup()
        raise ServiceError("training_service: the cluster does not end its jobs")


def test_the_result_of_a_search_outlives_a_clean_up_that_fails(tmp_path, monkeypatch, caplog):
    """And so does the error of one that failed."""
    monkeypatch.chdir(tmp_path)
    said = "not all jobs of study 'counted' could be ended: training_service: the cluster does not end its jobs"
    with search_session(config(), service=Unending(LocalServiceConfig(), tmp_path / "service")):
        pass
    assert said in caplog.text
    with (
        pytest.raises(StudyError, match="another reason"),
        search_session(config(), service=Unending(LocalServiceConfig(), tmp_path / "service")),
    ):
        raise StudyError("another reason")
