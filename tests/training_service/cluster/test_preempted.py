"""A node that is taken back: its program gives the job the time to save itself."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from nasflow.job.events import Ended, parse_event
from nasflow.job.spec import job_dir, trial_dir
from nasflow.training_service.base import JobStatus
from nasflow.training_service.cluster.runs import ClusterRecords
from nasflow.training_service.files.shared_root import import_path
from nasflow.training_service.machine.job_process import GRACE, NOTICE
from tests.training.jobs import evaluator, make_job, sample


def test_the_job_is_saved_before_its_node_goes(tmp_path: Path) -> None:
    """Its next batch takes longer than the time between SIGTERM and SIGKILL."""
    data = {"target": "spaces.py:augmented", "params": {"pause": (GRACE + 0.4) / 8}}  # 8 samples a batch
    config = evaluator(data=data, epochs=2)
    spec = make_job("spaces.py:net", config, sample("spaces.py:net", config, 2), on_preempt=True)
    records = ClusterRecords(tmp_path, "test")
    with records.service_lock():
        records.enqueue(spec)
        assert list(records.take(["test-0"])) == [(spec.job_id, "test-0")]
        run = records.new_run(spec.job_id)
    activity = job_dir(tmp_path, spec.job_id) / "activity"
    program = [sys.executable, "-P", "-m", "nasflow.training_service.cluster.node_program", *run.arguments]
    node = subprocess.Popen(
        [*program, str(records.controller)],
        env={**os.environ, "PYTHONPATH": import_path(), "OMP_NUM_THREADS": "1"},
        cwd=tmp_path,
    )
    try:
        while not _has_trained(activity):
            assert node.poll() is None
            time.sleep(0.05)
        began = time.monotonic()
        node.send_signal(signal.SIGTERM)
        assert node.wait(timeout=60) == 0
    finally:
        node.kill()
    assert time.monotonic() - began < NOTICE
    state = run.ended()
    assert state is not None and (state.status, state.exit_code) == (JobStatus.EXITED, 1)
    last = parse_event((job_dir(tmp_path, spec.job_id) / "events.jsonl").read_text().splitlines()[-1])
    assert isinstance(last, Ended) and last.infrastructure and last.preempted
    for trial in range(2):
        assert len(list(trial_dir(tmp_path, trial).glob("epoch-0000.within.*"))) == 1


def _has_trained(activity: Path) -> bool:
    """Whether the job has made progress in an epoch."""
    if not activity.exists() or len(content := activity.read_bytes()) < 40:
        return False
    progress, epoch = (int.from_bytes(content[8 * i : 8 * i + 8], "little", signed=True) for i in (2, 3))
    return 0 < epoch < progress
