"""The folder in which a job runs: that of the user's code, or its own where this machine does not have that."""

from pathlib import Path

import pytest

from nasflow.config.search import Target
from nasflow.job.events import Ended, Epoch, parse_event
from nasflow.job.spec import JobSpec
from nasflow.training.runner import run_job_file
from tests.training.jobs import evaluator, make_job


def write_job(root: Path, spec: JobSpec) -> Path:
    file = root / "jobs" / spec.job_id / "job.json"
    file.parent.mkdir(parents=True)
    file.write_text(spec.model_dump_json())
    return file


@pytest.mark.parametrize(("target", "code"), [("nasflow.space.ready:mlp", 0), ("spaces.py:mixed", 1)])
def test_a_job_whose_code_is_in_modules_needs_no_folder_of_code(tmp_path: Path, target: str, code: int) -> None:
    config = evaluator(data={"target": "nasflow.evaluator.data:DigitsRows"}, epochs=1)
    architecture = {"depth": 1, "width0": 32, "activation": "relu", "dropout": 0.0}
    spec = make_job("nasflow.space.ready:mlp", config, [architecture])
    spec = spec.model_copy(update={"space": Target(target=target), "base_dir": tmp_path / "elsewhere"})
    file = write_job(tmp_path, spec)
    assert run_job_file(file) == code
    events = [parse_event(line) for line in (file.parent / "events.jsonl").read_text().splitlines()]
    assert any(isinstance(event, Epoch) for event in events) is (code == 0)
    ended = events[-1]
    assert isinstance(ended, Ended)
    assert ended.error is None if code == 0 else f"{tmp_path}/elsewhere" in str(ended.error)
