"""A node that is taken back: its program gives the job the time to save itself."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from nasflow.job.events import Ended, parse_event
from nasflow.job.spec import JobSpec, job_dir, trial_dir
from nasflow.testing.service_jobs import script, until
from nasflow.training_service.base import JobStatus
from nasflow.training_service.cluster.runs import ClusterRecords, Run
from nasflow.training_service.files.shared_root import import_path
from nasflow.training_service.machine.job_process import GRACE, NOTICE
from tests.training.jobs import evaluator, make_job, sample


def test_the_job_is_saved_before_its_node_goes(tmp_path: Path) -> None:
    """Its next batch takes longer than the time between SIGTERM and SIGKILL."""
    data = {"target": "spaces.py:augmented", "params": {"pause": (GRACE + 0.4) / 8}}  # 8 samples a batch
    config = evaluator(data=data, epochs=2)
    spec = make_job("spaces.py:net", config, sample("spaces.py:net", config, 2), on_preempt=True)
    run, node = _start(spec, tmp_path)
    activity = job_dir(tmp_path, spec.job_id) / "activity"
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


@pytest.mark.parametrize("is_told", [True, False])
def test_a_cluster_may_signal_the_job_before_its_program(tmp_path: Path, is_told: bool) -> None:
    """If it signals only the job, that is how the job ended."""
    spec = script("job", ["wait", "never"])
    run, node = _start(spec, tmp_path, "--runner=nasflow.testing.scripted_job:run_job_file")
    try:
        runs = job_dir(tmp_path, spec.job_id) / "runs"
        job = psutil.Process(int(until(lambda: runs.exists() and runs.read_text().strip(), "start of the job")))
        job.terminate()
        until(lambda: not job.is_running(), "end of the job")
        time.sleep(0.5)
        if is_told:
            node.send_signal(signal.SIGTERM)
        assert node.wait(timeout=60) == 0
    finally:
        node.kill()
    state = run.ended()
    assert state is not None
    if is_told:
        assert (state.status, state.reason) == (JobStatus.LOST, "its program on the node was ended by SIGTERM")
    else:
        assert (state.status, state.signal) == (JobStatus.EXITED, signal.SIGTERM)


def _start(spec: JobSpec, root: Path, *options: str) -> tuple[Run, subprocess.Popen[bytes]]:
    """Start the program of a job on its node."""
    records = ClusterRecords(root, "test")
    with records.service_lock():
        records.enqueue(spec)
        assert list(records.take(["test-0"])) == [(spec.job_id, "test-0")]
        run = records.new_run(spec.job_id)
    program = [sys.executable, "-P", "-m", "nasflow.training_service.cluster.node_program", *run.arguments]
    return run, subprocess.Popen(
        [*program, str(records.controller), *options],
        env={**os.environ, "PYTHONPATH": import_path(), "OMP_NUM_THREADS": "1"},
        cwd=root,
    )


def _has_trained(activity: Path) -> bool:
    """Whether the job has made progress in an epoch."""
    if not activity.exists() or len(content := activity.read_bytes()) < 40:
        return False
    progress, epoch = (int.from_bytes(content[8 * i : 8 * i + 8], "little", signed=True) for i in (2, 3))
    return 0 < epoch < progress
