"""Opening, resuming, loading and listing studies; stores that can't be used; rounds and the lock."""

import multiprocessing
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update

from nasflow.config.search import SearchConfig
from nasflow.errors import ConfigError, StudyError
from nasflow.space.architecture import Architecture
from nasflow.study.database.store import SCHEMA_VERSION, RoundRow, SchemaRow, Store
from nasflow.study.database.store_url import sqlite_file
from nasflow.study.records import AttemptKind, AttemptState, EpochRecord, FinalRecord, RoundState
from nasflow.study.study import Study, list_studies
from nasflow.system.present_folder import in_folder
from nasflow.trial import TrialStatus

OpenStudy = Callable[..., Study]
MakeConfig = Callable[..., SearchConfig]

# --- open, load, list --------------------------------------------------------------------------------------------


def test_a_study_is_resumed_with_a_larger_budget(open_study: OpenStudy, store_url: str) -> None:
    open_study().begin_round(0)
    resumed = open_study(budget={"rounds": 9}, strategy={"kind": "tpe"}, merge={"enabled": False})
    assert [r.number for r in resumed.rounds()] == [0]
    loaded = Study.load(store_url, "digits")
    assert loaded.config == resumed.config and loaded.config.budget.rounds == 9 and loaded.name == "digits"
    loaded.close()


_EVALUATOR: dict[str, Any] = {
    "kind": "classification", "data": {"target": "nasflow.evaluator.data:Digits"}, "epochs": 4,
}  # fmt: skip


def test_a_trial_may_get_other_devices_but_the_same_trials_are_large(open_study: OpenStudy) -> None:
    def opened(**parallel: Any) -> Study:
        evaluator = {**_EVALUATOR, "parallel": {"devices": 2, "min_parameters": 1000, **parallel}}
        return open_study(evaluator=evaluator, training_service={"kind": "local", "slots": 4})

    opened()
    opened(devices=4, strategy="fsdp")
    with pytest.raises(StudyError, match=r"evaluator\.parallel\.min_parameters is 1000 on record, 10 in the config"):
        opened(min_parameters=10)


@pytest.mark.parametrize("between", [{"target": "spaces.py:unseen"}, {}], ids=["the same", "none"])
def test_other_test_data_forget_the_scores_on_the_old_ones(open_study: OpenStudy, between: dict[str, Any]) -> None:
    def opened(**test_data: Any) -> Study:
        return open_study(evaluator={**_EVALUATOR, **({"test_data": test_data} if test_data else {})})

    study = opened(target="spaces.py:unseen")
    study.begin_round(0)
    study.submit_trials(0, [Architecture({"width": 8})])
    for kind, name in ((AttemptKind.ALONE, "val_accuracy"), (AttemptKind.TEST, "test_accuracy")):
        attempt = study.new_attempt(0, kind)
        study.start_attempt(attempt.id, str(kind))
        study.record_outcome(attempt.id, AttemptState.SUCCEEDED, [FinalRecord(0, {name: 0.5}, 1)])
    left = study.new_attempt(0, AttemptKind.TEST)
    assert opened(**between).trial(0).metrics == {"val_accuracy": 0.5, "test_accuracy": 0.5}
    other = opened(target="spaces.py:other")
    assert other.trial(0).metrics == {"val_accuracy": 0.5}
    assert other.new_attempt(0, AttemptKind.TEST).id != left.id


def test_an_objective_is_no_score_on_test_data(open_study: OpenStudy) -> None:
    objectives = [{"metric": "test_f1", "direction": "maximize"}]
    tested: dict[str, Any] = {**_EVALUATOR, "test_data": {"target": "spaces.py:unseen"}}
    study = open_study(objectives=objectives, evaluator=tested)
    study.begin_round(0)
    study.submit_trials(0, [Architecture({"width": 8})])
    for kind, value in ((AttemptKind.ALONE, 0.75), (AttemptKind.TEST, 0.25)):
        attempt = study.new_attempt(0, kind)
        study.start_attempt(attempt.id, str(kind))
        finals = [FinalRecord(0, {"test_f1": value, "test_loss": value}, 1)]
        study.record_outcome(attempt.id, AttemptState.SUCCEEDED, finals)
    trial = study.trial(0)
    assert (trial.metrics, study.leaderboard(1)) == ({"test_f1": 0.75, "test_loss": 0.25}, [trial])
    untested = open_study(objectives=objectives, evaluator={**_EVALUATOR, "test_data": {"target": "spaces.py:other"}})
    assert untested.trial(0).metrics == {"test_f1": 0.75}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"space": {"target": "nasflow.space.ready:mlp", "params": {"classes": 5}}},
            "study 'digits': space.params.classes is 10 on record, 5 in the config; set it back, or give the search",
        ),
        (
            {"space": {"target": "nasflow.space.ready:mlp", "params": {"classes": 10, "depth": 3}}},
            "space.params.depth is absent on record, 3 in the config",
        ),
        (
            {"space": {"target": "nasflow.space.ready:mlp", "params": {"classes": 10.0}}},
            "space.params.classes is 10 on record, 10.0 in",
        ),
        ({"evaluator": {**_EVALUATOR, "epochs": 8}}, "evaluator.epochs is 4 on record, 8 in the config"),
        (
            {"evaluator": {**_EVALUATOR, "optimizer": {"lr": {"float": [0.1, 1]}}}},
            'evaluator.optimizer.lr is 0.001 on record, {"float": [0.1, 1.0], "log": false} in',
        ),
        (
            {"objectives": [{"metric": "val_loss", "direction": "minimize"}]},
            'objectives.0.metric is "val_accuracy" on record, "val_loss" in',
        ),
        ({"seed": 1}, "seed is 0 on record, 1 in the config"),
    ],
)
def test_a_changed_search_is_refused_by_its_key(open_study: OpenStudy, change: dict[str, Any], words: str) -> None:
    study = open_study()
    with pytest.raises(StudyError) as error:
        open_study(**change)
    assert words in str(error.value)
    assert open_study().config == study.config


def test_work_dir_is_fixed_once_there_are_trials(open_study: OpenStudy, tmp_path: Path) -> None:
    open_study()
    study = open_study(work_dir=tmp_path / "elsewhere")
    study.begin_round(0)
    study.submit_trials(0, [Architecture({"width": 1})])
    with pytest.raises(StudyError, match=r"work_dir is .*elsewhere.* on record, .*third"):
        open_study(work_dir=tmp_path / "third")
    open_study(work_dir=tmp_path / "elsewhere", base_dir=tmp_path / "moved")


def test_a_config_that_json_cannot_hold_is_refused(open_study: OpenStudy) -> None:
    with pytest.raises(StudyError, match="config of 'digits' can't be recorded as JSON"):
        open_study(space={"target": "a:b", "params": {"x": object()}})
    for value, key in ((float("nan"), "x"), ([float("inf")], r"x\.0")):  # found sooner, with their key
        with pytest.raises(ConfigError, match=rf"space\.params\.{key}: (nan|inf) is no number that can be recorded"):
            open_study(space={"target": "a:b", "params": {"x": value}})


def test_load_names_close_matches(open_study: OpenStudy, store_url: str) -> None:
    open_study()
    with pytest.raises(StudyError, match="there is no study 'digit' in the store; it has digits"):
        Study.load(store_url, "digit")


def test_a_name_that_is_not_text_is_no_study(open_study: OpenStudy, store_url: str) -> None:
    open_study()
    with pytest.raises(StudyError, match=r"there is no study 'digits\\udcff' in the store; it has digits"):
        Study.load(store_url, "digits\udcff")


def test_the_record_of_another_version_is_refused(open_study: OpenStudy, store_url: str) -> None:
    from nasflow.study.database.store import StudyRow

    study = open_study()
    with study._store.write("x") as session:
        session.execute(update(StudyRow).values(config={**_recorded(session), "novelty": 1}))
    with pytest.raises(StudyError, match="can't read the config on record, at 'novelty'"):
        Study.load(store_url, "digits")


def _recorded(session: Any) -> dict[str, Any]:
    from sqlalchemy import select

    from nasflow.study.database.store import StudyRow

    values: dict[str, Any] = session.scalar(select(StudyRow.config))
    return values


def test_the_store_keeps_no_password_of_itself(open_study: OpenStudy) -> None:
    with open_study()._store.read() as session:
        assert "store" not in _recorded(session)


def test_studies_are_listed_with_their_best(open_study: OpenStudy, store_url: str) -> None:
    before = datetime.now(UTC)
    for name, direction in (("a", "maximize"), ("b", "minimize"), ("c", "maximize")):
        study = open_study(name=name, objectives=[{"metric": "m", "direction": direction}])
        if name == "c":
            continue
        study.begin_round(0)
        study.submit_trials(0, [Architecture({"width": width}) for width in range(3)])
        attempt = study.plan_batches(0, [[0, 1]])[0]
        finals = [FinalRecord(n, {"m": float(n)}, 1) for n in (0, 1)]
        study.record_outcome(attempt.id, AttemptState.SUCCEEDED, finals)
    infos = list_studies(store_url)
    assert [(i.name, i.rounds, i.best, i.counts[TrialStatus.TRAINED]) for i in infos] == [
        ("a", 1, 1.0, 2), ("b", 1, 0.0, 2), ("c", 0, None, 0),
    ]  # fmt: skip
    assert all(before <= info.created_at <= datetime.now(UTC) for info in infos)
    assert infos[0].counts[TrialStatus.SUBMITTED] == 1 and infos[1].objective.direction == "minimize"


# --- stores that can't be used -----------------------------------------------------------------------------------


def test_a_newer_database_is_refused(open_study: OpenStudy, store_url: str) -> None:
    with open_study()._store.write("x") as session:
        session.execute(update(SchemaRow).values(version=SCHEMA_VERSION + 1))
    for action in (open_study, lambda: Study.load(store_url, "digits"), lambda: list_studies(store_url)):
        with pytest.raises(StudyError, match=r"newer nasflow .* upgrade nasflow"):
            action()


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("nasflow.db", "not a database URL"),
        ("postgresql://\udc8b@host/db", "not a database URL"),
        ("sqlite://", "needs a file or a server"),
        ("sqlite:///:memory:", "needs a file or a server"),
        ("mysql://me:hush@host/db", "mysql is not supported"),
        ("postgresql://me:hush@127.0.0.1:1/db", r"me:\*\*\*@127.0.0.1:1/db can't be used"),
        ("postgres://me@127.0.0.1:1/db?password=hush", "can't be used"),
        ("postgresql://me:hush@127.0.0.1:port/db", "not a database URL"),
    ],
)
def test_a_bad_url_is_one_sentence_without_the_password(url: str, words: str) -> None:
    for create in (True, False):
        with pytest.raises(StudyError, match=words) as error:
            Store(url, create)
        assert "hush" not in str(error.value) and "\n" not in str(error.value)


def test_a_missing_database_is_not_made_by_looking(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match=r"there is no database .*none\.db"):
        list_studies(f"sqlite:///{tmp_path}/none.db")
    assert not (tmp_path / "none.db").exists()


def test_files_that_are_no_store(tmp_path: Path) -> None:
    (tmp_path / "text.db").write_text("not a database, but long enough to be read as the header of one " * 3)
    with pytest.raises(StudyError, match="can't be used: file is not a database"):
        list_studies(f"sqlite:///{tmp_path}/text.db")
    sqlite3.connect(tmp_path / "other.db").execute("CREATE TABLE t (x)").connection.close()
    with pytest.raises(StudyError, match="holds no nasflow studies"):
        list_studies(f"sqlite:///{tmp_path}/other.db")
    with pytest.raises(StudyError, match="can't make the folder"):
        Store(f"sqlite:///{tmp_path}/text.db/sub/x.db", create=True)


def test_a_damaged_file_is_one_sentence(make_config: MakeConfig, tmp_path: Path) -> None:
    file = tmp_path / "damaged.db"
    Study.open(make_config(store=f"sqlite:///{file}")).close()
    content = file.read_bytes()
    file.write_bytes(content[:100] + bytes(range(256)) * (len(content) // 256))  # its header is as it was
    for action in (
        lambda: list_studies(f"sqlite:///{file}"),
        lambda: Study.load(f"sqlite:///{file}", "digits"),
        lambda: Study.open(make_config(store=f"sqlite:///{file}")),
    ):
        with pytest.raises(StudyError, match="can't be used: database disk image is malformed; put back a copy"):
            action()


def test_a_missing_driver_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['psycopg'] = None\n"
        "from nasflow.study.database.store import Store\n"
        "from nasflow.errors import StudyError\n"
        "try: Store('postgresql://me@localhost/db')\n"
        "except StudyError as error: print(error)\n"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "install 'nasflow[postgresql]'" in shown


def test_reading_the_study_takes_no_torch_and_no_prefect() -> None:
    code = "import sys, nasflow.study.study; print([m for m in ('torch', 'prefect', 'optuna') if m in sys.modules])"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert shown.strip() == "[]"


def test_a_relative_file_stays_the_same_when_the_folder_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path)
    store = Store("sqlite:///deep/study.db", create=True)
    store.close()
    monkeypatch.chdir(tmp_path / "other")
    with store.write("x") as session:
        assert session.get(SchemaRow, SCHEMA_VERSION)
    store.close()
    assert (tmp_path / "deep" / "study.db").is_file()


def test_a_relative_file_is_where_the_search_was_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also while a thread builds models in another folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other").mkdir()
    with in_folder(tmp_path / "other"):
        assert sqlite_file("sqlite:///nasflow.db") == tmp_path / "nasflow.db"
        assert sqlite_file(f"sqlite:///{tmp_path}/there/a.db") == tmp_path / "there/a.db"
    assert sqlite_file("sqlite:///nasflow.db") == tmp_path / "nasflow.db"


# --- rounds ------------------------------------------------------------------------------------------------------


def test_rounds_begin_and_end(study: Study) -> None:
    begun = study.begin_round(0)
    assert (begun.number, begun.state, begun.ended_at, begun.message) == (0, RoundState.RUNNING, None, "")
    ended = study.end_round(0, RoundState.FAILED, "every trial failed")
    assert ended.ended_at is not None and ended.ended_at >= begun.started_at
    assert study.end_round(0, RoundState.FAILED, "every trial failed") == ended
    study.begin_round(1)
    assert [(r.number, r.state, r.message) for r in study.rounds()] == [
        (0, RoundState.FAILED, "every trial failed"),
        (1, RoundState.RUNNING, ""),
    ]
    with pytest.raises(StudyError, match="no round 5"):
        study.end_round(5, RoundState.COMPLETED)
    with pytest.raises(ValueError, match="ends as"):
        study.end_round(1, RoundState.RUNNING)


def _age(study: Study, number: int, seconds: float) -> None:
    """Make a round's last start that much older."""
    study._clocks[number] -= seconds


def test_seconds_spent_is_the_time_of_the_rounds(study: Study) -> None:
    for number, seconds in ((0, 100), (1, 20)):
        study.begin_round(number)
        _age(study, number, seconds)
        study.end_round(number, RoundState.COMPLETED)
    assert 120 <= study.seconds_spent() < 125
    study.begin_round(1)  # opened again, as a retry of its failed trials does
    _age(study, 1, 7)
    study.end_round(1, RoundState.COMPLETED)
    assert 127 <= study.seconds_spent() < 132


def test_the_time_between_a_crash_and_the_restart_is_not_spent(study: Study) -> None:
    study.begin_round(0)
    study.submit_trials(0, [Architecture({"width": 1})])
    _age(study, 0, 60)
    assert study.seconds_spent() < 1  # no sign of life since it began
    study.record_epochs([EpochRecord(0, 1, {})])
    assert 60 <= study.seconds_spent() < 65
    _age(study, 0, 600)  # while it was down
    study.begin_round(0)
    study.end_round(0, RoundState.COMPLETED)
    assert 60 <= study.seconds_spent() < 65


def test_a_clock_that_is_set_changes_no_time_spent(study: Study) -> None:
    for day in (-86_400, 86_400):  # of the time of day, forward and back
        study.begin_round(0)
        with study._store.write("x") as session:
            session.get_one(RoundRow, (study._id, 0)).resumed_at += timedelta(seconds=day)
        study.plan_batches(0, [[trial.number for trial in study.submit_trials(0, [Architecture({"width": 1})])]])
        study.start_attempt(study.batches(0)[0].id, "job")
        study.end_round(0, RoundState.COMPLETED)
        assert 0 <= study.seconds_spent() < 5


# --- many at once ------------------------------------------------------------------------------------------------


def _open_at(config: SearchConfig, moment: float) -> int:
    time.sleep(max(0.0, moment - time.time()))
    study = Study.open(config)
    study.begin_round(0)
    trials = study.submit_trials(0, [Architecture({"width": width}) for width in range(20)])
    study.plan_batches(0, [[trial.number for trial in trials]])
    study.close()
    return len(trials)


def test_processes_that_open_a_new_study_at_once_make_one(make_config: MakeConfig, store_url: str) -> None:
    with multiprocessing.get_context("spawn").Pool(3) as pool:
        moment = time.time() + 1.5
        counts = pool.starmap(_open_at, [(make_config(), moment)] * 3)
    assert counts == [20] * 3
    study = Study.load(store_url, "digits")
    assert [t.number for t in study.trials()] == list(range(20))
    assert len(study.batches(0)) == 1
    study.close()
