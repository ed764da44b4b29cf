"""A folder of jobs belongs to one study on record."""

import errno
import logging
import os
from datetime import UTC, datetime, timedelta

import pytest

from nasflow.errors import StudyError
from nasflow.study.folder import MARK, claim_folder, is_claimed

CREATED = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)


def test_a_folder_is_claimed_once_and_found_again(tmp_path):
    claim_folder(tmp_path / "runs" / "digits", "digits", CREATED)
    claim_folder(tmp_path / "runs" / "digits", "digits", CREATED)


def test_the_folder_of_a_study_whose_database_is_gone_is_refused(tmp_path):
    claim_folder(tmp_path, "digits", CREATED)
    with pytest.raises(StudyError, match=r"holds jobs and checkpoints of a study 'digits'.*move the folder away"):
        claim_folder(tmp_path, "digits", CREATED + timedelta(seconds=1))


def test_a_folder_with_unmarked_jobs_is_refused(tmp_path):
    (tmp_path / "jobs").mkdir()
    with pytest.raises(StudyError, match="holds jobs"):
        claim_folder(tmp_path, "digits", CREATED)


@pytest.mark.parametrize(
    "content", [b"", b'{"name": "dig', bytes(60), b"\xff\xfe"], ids=["empty", "cut", "zeros", "no text"]
)
def test_a_damaged_mark_of_this_study_is_renewed(tmp_path, content, caplog):
    claim_folder(tmp_path, "digits", CREATED)
    (tmp_path / "jobs").mkdir()
    (tmp_path / MARK).write_bytes(content)
    assert not is_claimed(tmp_path, "digits", CREATED)
    with caplog.at_level(logging.WARNING):
        claim_folder(tmp_path, "digits", CREATED)
    assert is_claimed(tmp_path, "digits", CREATED)
    assert [record.message.partition(":")[0] for record in caplog.records] == [
        f"{tmp_path / MARK} is damaged and is now {MARK}.damaged"
    ]


def test_a_damaged_mark_that_is_older_than_the_study_may_be_another_ones(tmp_path):
    claim_folder(tmp_path, "digits", CREATED)
    (tmp_path / "jobs").mkdir()
    (tmp_path / MARK).write_bytes(b"")
    os.utime(tmp_path / MARK, times=(0, CREATED.timestamp() - 1))
    with pytest.raises(StudyError, match="holds jobs"):
        claim_folder(tmp_path, "digits", CREATED)


@pytest.mark.parametrize("mask", [0o022, 0o002])
def test_others_may_read_the_mark_as_the_umask_says(tmp_path, mask):
    before = os.umask(mask)
    try:
        claim_folder(tmp_path, "digits", CREATED)
    finally:
        os.umask(before)
    assert (tmp_path / MARK).stat().st_mode & 0o777 == 0o666 & ~mask


@pytest.mark.parametrize("code", [errno.EPERM, errno.EOPNOTSUPP])
def test_a_disk_without_hard_links_will_do(tmp_path, monkeypatch, code):
    def no_links(*_):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "link", no_links)
    claim_folder(tmp_path, "digits", CREATED)
    claim_folder(tmp_path, "digits", CREATED)
    assert is_claimed(tmp_path, "digits", CREATED)
    with pytest.raises(StudyError, match="holds jobs"):
        claim_folder(tmp_path, "digits", CREATED + timedelta(seconds=1))
    assert [path.name for path in tmp_path.iterdir()] == [MARK]
