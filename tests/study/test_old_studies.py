"""Old studies: which may go, and removing one with all that belongs to it, on both kinds of store."""

import errno
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import func, select

from nasflow.config.search import SearchConfig
from nasflow.errors import StudyError
from nasflow.recurring import config_of_run, runs_of_study
from nasflow.space.architecture import Architecture
from nasflow.study.database.store import Base, SchemaRow, Store
from nasflow.study.folder import claim_folder
from nasflow.study.lease import Lease
from nasflow.study.records import AttemptState, EpochRecord, FinalRecord, RoundState
from nasflow.study.retention import old_studies, remove_study
from nasflow.study.study import Study, list_studies

MakeConfig = Callable[..., SearchConfig]
NO_TIME = timedelta(0)


def filled(config: SearchConfig) -> Path:
    """A study with a round, trials, a replay, epochs, attempts, a folder, and copies of its checkpoints."""
    study = Study.open(config)
    claim_folder(config.study_dir, config.name, study.created_at)
    study.begin_round(0)
    study.submit_trials(0, [Architecture({"width": width}) for width in (8, 16, 8)])
    attempt = study.plan_batches(0, [[0, 1]])[0]
    study.start_attempt(attempt.id, "job")
    epochs = [EpochRecord(trial, 1, {"val_accuracy": 0.5}, 1.0, attempt.id) for trial in (0, 1)]
    finals = [FinalRecord(trial, {"val_accuracy": 0.5}, 1) for trial in (0, 1)]
    study.record_epochs(epochs)
    study.record_outcome(attempt.id, AttemptState.SUCCEEDED, finals)
    study.settle_replays()
    study.end_round(0, RoundState.COMPLETED)
    study.close()
    (config.study_dir / "trials" / "0").mkdir(parents=True)
    (config.study_dir / "trials" / "0" / "epoch-0001.safetensors").write_bytes(b"weights")
    (config.study_dir / "recover.log").write_text("log")
    return config.study_dir


def rows(store_url: str) -> dict[str, int]:
    store = Store(store_url)
    try:
        with store.read() as session:
            tables = [mapper.class_ for mapper in Base.registry.mappers if mapper.class_ is not SchemaRow]
            return {table.__tablename__: session.scalar(select(func.count()).select_from(table)) for table in tables}
    finally:
        store.close()


def names(store_url: str) -> list[str]:
    return [info.name for info in list_studies(store_url)]


def test_nothing_of_a_study_stays_and_all_of_the_others(make_config: MakeConfig, tmp_path: Path) -> None:
    copies = tmp_path / "copies"
    config = make_config(name="old", checkpoint={"url": f"file://{copies}"})
    filled(make_config(name="other"))
    before = rows(config.store)
    folder = filled(config)
    (copies / "old" / "trials" / "0").mkdir(parents=True)
    (copies / "old" / "trials" / "0" / "epoch-0001.json").write_text("{}")
    (copies / "other").mkdir()
    seen = []
    remove_study(config.store, "old", before=lambda study: seen.append(len(study.trials())))
    assert seen == [3]
    assert rows(config.store) == before
    assert not folder.exists()
    assert [path.name for path in copies.iterdir()] == ["other"]
    assert (make_config(name="other").study_dir / "trials").is_dir()
    filled(config)  # the name is free again


def test_the_runs_of_a_study_go_with_it(make_config: MakeConfig) -> None:
    config = config_of_run(make_config(recurring={}), "run", datetime.now(UTC))
    filled(config)
    remove_study(config.store, config.name)
    assert runs_of_study(config.store, config.name) == []


def test_one_that_a_controller_holds_stays(make_config: MakeConfig) -> None:
    config = make_config()
    folder = filled(config)
    lease = Lease()
    study = Study.open(config, lease)
    with lease.kept(lambda: None):
        with pytest.raises(StudyError, match="another controller runs study 'digits'"):
            remove_study(config.store, "digits")
        assert (folder / "trials").is_dir()
        assert len(study.trials()) == 3
    study.close()


def test_the_jobs_of_a_dead_controller_are_ended_first(make_config: MakeConfig) -> None:
    config = make_config()
    folder = filled(config)
    code = """
import os, signal, sys
from nasflow.config.search import SearchConfig
from nasflow.study.lease import Lease
from nasflow.study.study import Study
Study.open(SearchConfig.model_validate_json(sys.argv[1]), Lease())
os.kill(os.getpid(), signal.SIGKILL)
"""
    controller = subprocess.run([sys.executable, "-c", code, config.model_dump_json()], check=False, env=os.environ)
    assert controller.returncode == -signal.SIGKILL
    there = []
    remove_study(config.store, "digits", end_jobs=lambda study: there.append((folder / "trials").is_dir()))
    assert there == [True]
    assert not folder.exists()


def test_what_fails_before_leaves_it_as_it_is(make_config: MakeConfig) -> None:
    config = make_config()
    folder = filled(config)

    def fail(study: Study) -> None:
        raise StudyError("no export")

    with pytest.raises(StudyError, match="no export"):
        remove_study(config.store, "digits", before=fail)
    assert (folder / "trials" / "0" / "epoch-0001.safetensors").exists()
    study = Study.load(config.store, "digits")
    assert (len(study.trials()), study.controller()) == (3, None)
    study.close()


def test_cut_short_it_can_be_repeated(make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    config = make_config()
    folder = filled(config)
    with monkeypatch.context() as patch:
        patch.setattr("nasflow.study.retention.erase_record", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            remove_study(config.store, "digits")
    assert [path.name for path in folder.iterdir()] == ["study.json"]
    remove_study(config.store, "digits")
    assert (names(config.store), folder.exists()) == ([], False)


def test_a_folder_elsewhere_or_of_another_study_keeps_it(make_config: MakeConfig, tmp_path: Path) -> None:
    config = make_config()
    folder = filled(config)
    folder.rename(tmp_path / "away")
    with pytest.raises(StudyError, match="this machine does not have its folder"):
        remove_study(config.store, "digits")
    claim_folder(folder, "digits", datetime(2020, 1, 1, tzinfo=UTC))
    with pytest.raises(StudyError, match="is another study's"):
        remove_study(config.store, "digits")
    assert names(config.store) == ["digits"]
    assert folder.exists()


def test_a_study_without_trials_needs_no_folder(make_config: MakeConfig) -> None:
    config = make_config()
    Study.open(config).close()
    remove_study(config.store, "digits")
    assert names(config.store) == []


def test_a_study_without_trials_goes_and_leaves_the_folder_that_is_another_studys(make_config: MakeConfig) -> None:
    config = make_config()
    Study.open(config).close()
    claim_folder(config.study_dir, "digits", datetime(2020, 1, 1, tzinfo=UTC))
    (config.study_dir / "jobs").mkdir()
    remove_study(config.store, "digits", end_jobs=lambda _: pytest.fail("its jobs are another study's"))
    assert names(config.store) == []
    assert (config.study_dir / "jobs").is_dir()


def test_copies_that_can_not_be_removed_keep_it(make_config: MakeConfig) -> None:
    config = make_config(checkpoint={"url": "nowhere://bucket"})
    folder = filled(config)
    with pytest.raises(StudyError, match="its checkpoints at nowhere://bucket/digits can't be removed"):
        remove_study(config.store, "digits")
    assert (folder / "trials").is_dir()


def test_old_are_those_in_which_nothing_happens_any_more(make_config: MakeConfig) -> None:
    for name in ("nightly-1", "nightly-2", "weekly"):
        filled(make_config(name=name))
    store, now = make_config().store, datetime.now(UTC)

    def old(pattern: str, at: datetime, older_than: timedelta = NO_TIME, keep: int = 0) -> list[str]:
        return [study.name for study in old_studies(store, pattern, at, older_than, keep)]

    assert old("nightly-*", now) == ["nightly-1", "nightly-2"]
    assert old("*", now, keep=2) == ["nightly-1"]
    assert old("*", now, keep=9) == []
    assert old("*", now, timedelta(days=1)) == []
    later = now + timedelta(days=2)
    assert old("*", later, timedelta(days=1)) == ["nightly-1", "nightly-2", "weekly"]
    study = Study.open(make_config(name="nightly-1"))
    study.begin_round(1)
    study.close()
    assert old("*", later, timedelta(days=1), keep=1) == ["nightly-2", "weekly"]  # nightly-1 is the newest now


def test_a_folder_that_is_a_link_goes(make_config: MakeConfig, tmp_path: Path) -> None:
    config = make_config()
    folder = filled(config)
    large = folder.rename(tmp_path / "large")
    folder.symlink_to(large)
    remove_study(config.store, "digits")
    assert not folder.is_symlink()
    assert list(large.iterdir()) == []
    filled(config)  # the name is free again


def test_a_folder_that_stays_keeps_the_name_from_nobody(
    make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_config()
    folder = filled(config)
    rmtree = shutil.rmtree

    def stuck(path: Path) -> None:
        if path == folder:
            raise OSError(errno.EBUSY, "Device or resource busy")
        rmtree(path)

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", stuck)
        with pytest.raises(OSError, match="busy"):
            remove_study(config.store, "digits")
    filled(config)


def test_copies_of_another_study_of_that_name_stay(make_config: MakeConfig, tmp_path: Path) -> None:
    """As of one in another store, or of an earlier version, whose folder is the name alone."""
    far = tmp_path / "far"
    config = make_config(checkpoint={"url": f"file://{far}"})
    lease = Lease()
    study = Study.open(config, lease)
    with lease.kept(lambda: None):
        claim_folder(config.study_dir, config.name, study.created_at)
        copies = study.copies
    assert copies.startswith("digits@")
    study.close()
    for place in (copies, "digits", "digits@20200101T000000000000"):
        (far / place / "trials" / "00000").mkdir(parents=True)
    filled_now = filled(config)  # without a lease: trials
    lease = Lease()
    study = Study.open(config, lease)
    with lease.kept(lambda: None):
        assert study.copies == copies, "it stays the same when the study is resumed"
    study.close()
    remove_study(config.store, "digits")
    assert sorted(path.name for path in far.iterdir()) == ["digits", "digits@20200101T000000000000"]
    assert not filled_now.exists()


def test_a_study_of_an_earlier_version_finds_its_copies(make_config: MakeConfig) -> None:
    config = make_config()
    filled(config)
    for _ in range(2):
        lease = Lease()
        study = Study.open(config, lease)
        with lease.kept(lambda: None):
            assert study.copies == "digits"
        study.close()
