"""What CONTRIBUTING tells people to write works as it stands there."""

import inspect
import os
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest

from nasflow.config.search import load_config
from nasflow.evaluator.check import check_search
from nasflow.job.events import Epoch, Event
from nasflow.job.spec import JobSpec, MemberSpec
from nasflow.load_target import load_target
from nasflow.training.training_job import TrainingJob
from nasflow.training_service.base import TrainingService

ROOT = Path(__file__).resolve().parent.parent
BLOCK = re.compile(r"^```(?:python|yaml)\n# (?P<name>[\w.]+)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"`((?:nasflow|tests|flows|docs|examples|benchmarks)/[\w./-]*|[\w-]+\.(?:md|toml|txt))`")


@pytest.fixture(scope="module")
def text() -> str:
    return (ROOT / "CONTRIBUTING.md").read_text()


@pytest.fixture
def folder(text: str, tmp_path: Path) -> Path:
    """The recipes' files."""
    for block in BLOCK.finditer(text):
        (tmp_path / block["name"]).write_text(block["text"])
    return tmp_path


def test_its_strategy_keeps_the_contract(folder: Path) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull, f"--rootdir={folder}"]
    done = subprocess.run([*command, folder / "test_climb.py"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed and int(passed[1]) >= 10, done.stdout


def test_its_evaluator_trains(folder: Path) -> None:
    config = load_config(folder / "noisy.yaml")
    architecture = check_search(config).sample(random.Random(0))
    assert "params.noise" in architecture
    spec = JobSpec(
        job_id="job",
        study=config.name,
        space=config.space,
        evaluator=config.evaluator,
        data=config.evaluator.data,
        checkpoint=config.checkpoint,
        data_seed=0,
        base_dir=folder,
        members=[MemberSpec(trial=0, architecture=architecture, seed=0)],
    )
    events: list[Event] = []
    TrainingJob(spec, folder / "root", events.append).run()
    epochs = [event for event in events if isinstance(event, Epoch)]
    assert [event.epoch for event in epochs] == [1, 2]
    assert 0.1 < epochs[-1].metrics["val_accuracy"] <= 1


def test_its_training_service_has_every_method_as_the_contract_calls_it(folder: Path) -> None:
    service = load_target("my_service.py:MyService", folder)
    assert isinstance(service(folder, queue="short"), TrainingService)
    for name in {*TrainingService.__abstractmethods__, "stop_trial"}:
        contract = inspect.signature(getattr(TrainingService, name)).parameters.values()
        skeleton = inspect.signature(getattr(service, name)).parameters.values()
        assert [(p.name, p.default) for p in skeleton] == [(p.name, p.default) for p in contract], name


def test_the_files_it_names_exist(text: str) -> None:
    named = set(LINK.findall(text))
    assert len(named) > 20
    assert not {name for name in named if not (ROOT / name).exists()}
