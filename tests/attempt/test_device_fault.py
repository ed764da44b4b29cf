"""A GPU that one member makes unusable: no bystander is blamed, and all go on from their checkpoints in halves."""

import multiprocessing
import os
import threading
from pathlib import Path
from typing import Literal

import pytest
import torch

from nasflow.attempt.follower import AttemptFollower
from nasflow.config.search import parse_config
from nasflow.config.services.local import LocalServiceConfig
from nasflow.errors import ServiceError
from nasflow.job.events import Ended, Epoch, Event, Evicted, Started, parse_event, read_lines
from nasflow.job.spec import DEVICE_FAULT, JobSpec, MemberSpec, job_dir
from nasflow.space.architecture import Architecture
from nasflow.study.records import AttemptState
from nasflow.study.study import Study
from nasflow.training.device.fault import DeviceFaultError, refuse_fault
from nasflow.training.runner import run_job_file
from nasflow.training_service import debug_run
from nasflow.training_service.local.service import LocalService
from nasflow.trial import FailureKind
from tests.attempt.faulty_gpu import FAULT, FLAWED
from tests.training.jobs import evaluator, make_job

WIDTHS = [1, 2, 3, 4, 5]


SPACE = f"{Path(__file__).with_name('faulty_gpu.py')}:build"


@pytest.mark.parametrize("fuse", ["always", "never"])
def test_a_job_leaves_with_a_code_of_its_own(fuse: Literal["always", "never"], tmp_path: Path) -> None:
    """No member is blamed, and what they had finished is saved."""
    data = {"target": "nasflow.evaluator.data:DigitsRows", "params": {"batch_size": 512}}
    spec = make_job(SPACE, evaluator(data=data, epochs=3), [{"width": width} for width in WIDTHS], fuse=fuse)
    file = job_dir(tmp_path, spec.job_id) / "job.json"
    file.parent.mkdir(parents=True)
    file.write_text(spec.model_dump_json())
    process = multiprocessing.get_context("fork").Process(target=lambda: os._exit(run_job_file(file)))
    process.start()
    process.join(60)
    events = [parse_event(line) for line in read_lines(file.with_name("events.jsonl"))[0]]
    assert process.exitcode == DEVICE_FAULT
    assert not [event for event in events if isinstance(event, Evicted | Ended)]
    assert {(event.trial, event.epoch) for event in events if isinstance(event, Epoch)} == {
        (trial, epoch) for trial in range(len(WIDTHS)) for epoch in (1, 2)
    }


@pytest.mark.long
def test_halves_go_on_until_one_is_left_to_blame(tmp_path: Path) -> None:
    study = Study.open(
        parse_config(
            {
                "name": "poisoned",
                "space": {"target": SPACE},
                "evaluator": {
                    "kind": "classification",
                    "data": {"target": "nasflow.evaluator.data:DigitsRows", "params": {"batch_size": 512}},
                    "epochs": 3,
                },
                "merge": {"fuse": "always"},
                "store": f"sqlite:///{tmp_path}/nasflow.db",
                "base_dir": tmp_path,
            }
        )
    )
    study.begin_round(0)
    study.submit_trials(0, [Architecture({"width": width}) for width in WIDTHS])
    numbers = list(range(len(WIDTHS)))
    [attempt] = study.plan_batches(0, [numbers])
    service = LocalService(LocalServiceConfig(slots=1), tmp_path / "root")
    service.validate()
    service.prepare()
    places: list[int | None] = []
    seen: list[Event] = []
    try:
        while attempt.state is not AttemptState.SUCCEEDED:
            here = [trial for trial in study.trials_numbered(numbers) if not trial.status.finished and not trial.error]
            if not here:
                break
            places.append(attempt.places)
            members = [MemberSpec(trial=one.number, architecture=one.architecture, seed=one.number) for one in here]

            def make_spec(job_id: str, members: list[MemberSpec] = members) -> JobSpec:
                data = study.config.evaluator.data
                return JobSpec.of_search(study.config, job_id, data, members, places=places[-1])

            attempt = AttemptFollower(study, service, threading.Event()).follow(attempt, make_spec, seen.append)
            assert len(places) < 6
    finally:
        service.cleanup()
    assert places[:3] == [None, 2, 1], [trial.error for trial in study.trials_numbered(numbers)]
    assert not [event for event in seen if isinstance(event, Evicted)]
    blamed = {WIDTHS[trial.number]: trial.error for trial in study.trials_numbered(numbers) if trial.error}
    assert blamed.keys() == {FLAWED}
    assert FAULT in blamed[FLAWED] and "GPU could not be used any more" in blamed[FLAWED]
    assert all(trial.status.scored for trial in study.trials_numbered(numbers) if WIDTHS[trial.number] != FLAWED)
    assert {(ending.failure, ending.evidence["exit_code"]) for ending in attempt.endings} == {
        (FailureKind.TRIAL, DEVICE_FAULT)
    }
    resumed = [event.resumed for event in seen if isinstance(event, Started)]
    assert resumed[0] == dict.fromkeys(numbers, 0) and any(resumed[1].values()), "they go on from their checkpoints"
    study.close()


def test_a_process_without_its_gpu_runs_no_further_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(debug_run, "_FAULTS", [])
    assert debug_run.run_here(f"{__name__}:leave", tmp_path) == DEVICE_FAULT
    with pytest.raises(ServiceError, match="run the search again"):
        debug_run.run_here(f"{__name__}:leave", tmp_path)


def test_a_generator_that_can_not_be_restored_hides_no_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As those of a GPU that can't be used."""

    def fail(_: object) -> None:
        raise RuntimeError(FAULT)

    monkeypatch.setattr(debug_run, "_FAULTS", [])
    with monkeypatch.context() as patch:
        patch.setattr(torch, "set_rng_state", fail)
        assert debug_run.run_here(f"{__name__}:leave", tmp_path) == DEVICE_FAULT
    with pytest.raises(ServiceError, match="run the search again"):
        debug_run.run_here(f"{__name__}:leave", tmp_path)


def leave(job: Path) -> int:
    return DEVICE_FAULT


def test_an_error_of_a_sound_gpu_is_what_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    refuse_fault(ValueError("a layer gave up"))
    refuse_fault(torch.OutOfMemoryError("no room"))


@pytest.mark.parametrize(
    ("words", "is_hardware"),
    [(FAULT, False), ("CUDA error: uncorrectable ECC error encountered", True)],
)
def test_faults_of_the_card_are_nobodys(words: str, is_hardware: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise RuntimeError(words)

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", fail)
    with pytest.raises(DeviceFaultError, match=words) as found:
        refuse_fault(ValueError("whatever came next"))
    assert found.value.is_hardware is is_hardware


def test_a_cpu_has_no_faults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: pytest.fail("asked"))
    refuse_fault(ValueError("a layer gave up"))
