"""A folder of jobs belongs to one study on record."""

from datetime import UTC, datetime, timedelta

import pytest

from nasflow.errors import StudyError
from nasflow.study.folder import claim_folder

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
