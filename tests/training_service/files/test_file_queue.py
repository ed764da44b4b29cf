"""The records of jobs, in the files of a queue."""

from pathlib import Path

from nasflow.job.spec import job_dir
from nasflow.testing.training_service import script
from nasflow.training_service.base import JobState, JobStatus
from nasflow.training_service.files.file_queue import JobRecords


def test_a_cancelled_job_keeps_no_mark(tmp_path: Path) -> None:
    """Its outcome says it; the mark alone would be a file that no other search has."""
    records = JobRecords(tmp_path, "local")
    spec = script("job", ["wait", "never"])
    with records.lock():
        records.enqueue(spec)
        records.cancel_mark(spec.job_id).touch()
        records.settle(spec.job_id, JobState(status=JobStatus.LOST))
        assert records.outcome(spec.job_id) == JobState(status=JobStatus.CANCELLED)
    assert sorted(path.name for path in job_dir(tmp_path, spec.job_id).iterdir()) == ["exit.json", "job.json"]
